// Server-sent events as the gateway writes them: only their data.

const LARGEST_EVENT = 4 << 20; // characters

export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += decoder.decode(value, { stream: !done });
      const events = rest.split(/\r?\n\r?\n/);
      rest = done ? "" : (events.pop() ?? "");
      if (rest.length > LARGEST_EVENT) throw new Error("an event without an end");
      for (const event of events) {
        const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (data.length > 0) yield data.map((line) => line.slice(5).trimStart()).join("\n");
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
