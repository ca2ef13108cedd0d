// Asks the gateway. Knows the key, and what a failed answer says; knows nothing of what the answers mean.

const TIMEOUT_MS = 8000;

/** Why there is no answer, in words that can be shown. */
export class Problem extends Error {
  constructor(
    readonly status: number, // 0: no answer at all
    message: string,
    readonly retryAfterS = 0,
    readonly isNotKept = false, // the gateway has no such figures: its answer is complete
  ) {
    super(message);
  }

  get isRefusedKey(): boolean {
    return this.status === 401 || this.status === 403;
  }
}

/** What the gateway says of a failed request. */
export async function problemOf(response: Response): Promise<Problem> {
  let message = `The gateway answered with status ${response.status}.`;
  try {
    const body = (await response.json()) as { error?: { message?: unknown } };
    if (typeof body.error?.message === "string") message = body.error.message;
  } catch {
    // Not in the gateway's form: something in between answered. The status has to do.
  }
  return new Problem(response.status, message, Number(response.headers.get("retry-after")) || 0);
}

export function problemFrom(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof DOMException && error.name === "TimeoutError")
    return new Problem(0, `The gateway did not answer within ${TIMEOUT_MS / 1e3} s.`);
  return new Problem(0, "The gateway cannot be reached.");
}

export async function ask<Answer>(path: string, key: string, left: AbortSignal): Promise<Answer> {
  const response = await fetch(path, {
    headers: { authorization: `Bearer ${key}` },
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.any([left, AbortSignal.timeout(TIMEOUT_MS)]),
  });
  if (!response.ok) throw await problemOf(response);
  const body = (await response.json()) as Answer & { not_kept?: string };
  if (body.not_kept !== undefined) throw new Problem(response.status, body.not_kept, 0, true);
  return body;
}
