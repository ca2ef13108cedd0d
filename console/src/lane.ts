// One call of the try-it pane: sends it, reads its stream, and keeps what is known of it.

import { problemFrom, problemOf } from "./gateway";
import { readEvents } from "./sse";

export interface Asked {
  model: string;
  tier: string;
  prompt: string;
  tokens: number; // at most
}

/** `usage.headway`: as the gateway says it. */
export type Proof = Record<string, string | number | boolean | null>;

export interface LaneState {
  phase: "waiting" | "streaming" | "done" | "stopped" | "failed";
  thought: string;
  text: string;
  tokens: number;
  tierServed: string | null;
  began: number; // ms, on the page's own clock
  firstToken: number | null; // ms
  lastToken: number | null; // ms
  proof: Proof | null;
  finish: string | null;
  problem: string | null;
}

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning?: string | null }; finish_reason?: string | null }[];
  usage?: { completion_tokens?: number; headway?: Proof } | null;
  error?: { message?: string };
}

/** Tokens per second since the first one, as this page sees them. */
export function liveSpeed(lane: LaneState): number | null {
  if (lane.firstToken === null || lane.lastToken === null || lane.tokens < 2) return null;
  const seconds = (lane.lastToken - lane.firstToken) / 1e3;
  return seconds > 0.05 ? (lane.tokens - 1) / seconds : null;
}

/** Takes what one event says. Without counts by the engine, an event is taken for a token. */
export function take(lane: LaneState, chunk: Chunk, now: number): LaneState {
  if (chunk.error) return { ...lane, phase: "failed", problem: chunk.error.message ?? "The stream ended with an error." };
  const next: LaneState = { ...lane };
  for (const { delta, finish_reason } of chunk.choices ?? []) {
    if (finish_reason) next.finish = finish_reason;
    if (!delta?.content && !delta?.reasoning) continue;
    next.text += delta.content ?? "";
    next.thought += delta.reasoning ?? "";
    next.phase = "streaming";
    next.firstToken ??= now;
    next.lastToken = now;
    if (!chunk.usage) next.tokens += 1;
  }
  if (chunk.usage?.completion_tokens !== undefined) next.tokens = chunk.usage.completion_tokens;
  if (chunk.usage?.headway) next.proof = chunk.usage.headway;
  return next;
}

export async function run(asked: Asked, key: string, left: AbortSignal, show: (lane: LaneState) => void): Promise<void> {
  let lane: LaneState = {
    phase: "waiting",
    thought: "",
    text: "",
    tokens: 0,
    tierServed: null,
    began: performance.now(),
    firstToken: null,
    lastToken: null,
    proof: null,
    finish: null,
    problem: null,
  };
  show(lane);
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) },
      credentials: "omit",
      redirect: "error",
      signal: left,
      body: JSON.stringify({
        model: asked.model,
        messages: [{ role: "user", content: asked.prompt }],
        max_tokens: asked.tokens,
        service_tier: asked.tier,
        stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true },
      }),
    });
    if (!response.ok || !response.body) throw await problemOf(response);
    lane = { ...lane, tierServed: response.headers.get("headway-tier-served") };
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") {
        lane = { ...lane, phase: "done" };
        break;
      }
      lane = take(lane, JSON.parse(data) as Chunk, performance.now());
      show(lane);
      if (lane.phase === "failed") return;
    }
    if (lane.phase !== "done") throw new Error("cut");
  } catch (error) {
    lane = left.aborted ? { ...lane, phase: "stopped" } : { ...lane, phase: "failed", problem: failure(error, lane) };
  }
  show(lane);
}

function failure(error: unknown, lane: LaneState): string {
  const problem = problemFrom(error);
  if (problem.status === 0) return lane.firstToken === null ? problem.message : "The stream was cut before its end.";
  const again = problem.retryAfterS > 0 ? ` It may be tried again in ${problem.retryAfterS} s.` : "";
  const kind = { 401: "No valid key", 402: "Budget spent", 403: "Not allowed", 429: "Refused", 503: "Not available" }[problem.status];
  return `${kind ?? "Failed"} (${problem.status}): ${problem.message}${again}`;
}
