import assert from "node:assert/strict";
import { test } from "node:test";
import { liveSpeed, take, type LaneState } from "../src/lane";
import { readEvents } from "../src/sse";

const EMPTY: LaneState = {
  phase: "waiting",
  thought: "",
  text: "",
  tokens: 0,
  tierServed: null,
  began: 0,
  firstToken: null,
  lastToken: null,
  proof: null,
  finish: null,
  problem: null,
};

async function eventsOf(...pieces: string[]): Promise<string[]> {
  const encoder = new TextEncoder();
  const bytes = pieces.map((piece) => encoder.encode(piece));
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      const next = bytes.shift();
      if (next) controller.enqueue(next);
      else controller.close();
    },
  });
  const found: string[] = [];
  for await (const data of readEvents(body)) found.push(data);
  return found;
}

test("events are read wherever the pieces are cut", async () => {
  assert.deepEqual(await eventsOf('data: {"a":', '1}\n', "\ndata: [DONE]\n\n"), ['{"a":1}', "[DONE]"]);
  assert.deepEqual(await eventsOf("data: a\r\n\r\ndata: b\r\n\r\n"), ["a", "b"]);
  assert.deepEqual(await eventsOf(": a comment\n\nevent: x\ndata: y\n\n"), ["y"]);
});

test("an event that was not ended is read at the end", async () => {
  assert.deepEqual(await eventsOf("data: a\n\ndata: b"), ["a", "b"]);
});

test("the engine's count of tokens is taken, else events are counted", () => {
  const counted = take(EMPTY, { choices: [{ delta: { content: "two words" } }], usage: { completion_tokens: 2 } }, 100);
  assert.equal(counted.tokens, 2);
  const one = take(EMPTY, { choices: [{ delta: { content: "a" } }] }, 100);
  const two = take(one, { choices: [{ delta: { content: "b" } }] }, 600);
  assert.deepEqual([two.tokens, two.text, two.phase], [2, "ab", "streaming"]);
  assert.equal(liveSpeed(two), 2);
});

test("the proof and the reason of the end are kept", () => {
  const done = take(take(EMPTY, { choices: [{ delta: {}, finish_reason: "length" }] }, 1), { choices: [], usage: { completion_tokens: 5, headway: { kept: true } } }, 2);
  assert.deepEqual([done.finish, done.proof, done.tokens], ["length", { kept: true }, 5]);
});

test("an error in the stream is its end", () => {
  assert.deepEqual(take(EMPTY, { error: { message: "the engine was lost" } }, 1).problem, "the engine was lost");
});
