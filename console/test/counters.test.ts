import assert from "node:assert/strict";
import { test } from "node:test";
import { CounterHistory } from "../src/counters";

function history(values: (number[] | null)[], keep = 60): CounterHistory {
  const counters = new CounterHistory(keep);
  values.forEach((value, at) => counters.add(at, new Map(value ? [["row", value]] : [])));
  return counters;
}

test("growth is the difference over the window", () => {
  assert.deepEqual(history([[0], [10], [20], [60]]).growth("row", 2), { by: [50], over: 2 });
});

test("one sample says nothing", () => {
  assert.equal(history([[10]]).growth("row", 5), null);
  assert.equal(history([[10], [20]]).growth("another row", 5), null);
});

test("a counter that falls was started again: that step counts neither as growth nor as time", () => {
  assert.deepEqual(history([[100], [110], [3], [13]]).growth("row", 10), { by: [20], over: 2 });
});

test("a row that comes and goes is compared only with itself beside it", () => {
  assert.deepEqual(history([[1], null, [50], [51]]).growth("row", 10), { by: [1], over: 1 });
});

test("a row with other buckets is not compared", () => {
  assert.deepEqual(history([[1, 1], [2, 2, 2], [3, 3, 3]]).growth("row", 10), { by: [1, 1, 1], over: 1 });
});

test("a clock that goes back starts anew, and the same moment is no new sample", () => {
  const counters = history([[0], [10]]);
  counters.add(1, new Map([["row", [999]]]));
  assert.deepEqual(counters.growth("row", 10), { by: [10], over: 1 });
  counters.add(0.5, new Map([["row", [5]]]));
  assert.equal(counters.growth("row", 10), null);
});

test("old samples are thinned without losing growth", () => {
  const counters = new CounterHistory(300, 60, 5);
  for (let half = 0; half <= 1200; half += 1) counters.add(half / 2, new Map([["row", [half]]]));
  const growth = counters.growth("row", 300);
  assert.ok(growth && Math.abs((growth.by[0] ?? 0) / growth.over - 2) < 1e-9);
  assert.ok(growth.over > 290 && growth.over <= 300.3);
  assert.ok((counters as unknown as { samples: unknown[] }).samples.length < 200);
});
