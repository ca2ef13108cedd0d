import assert from "node:assert/strict";
import { test } from "node:test";
import { speedAt, ticks } from "../src/curve";
import { count, duration, money, rate, several, share } from "../src/format";
import { percentile } from "../src/histogram";
import { replicaLabel, shorten, visible } from "../src/names";

test("a percentile is on the line within its bucket", () => {
  assert.deepEqual(percentile([1, 2, 4], [0, 10, 0, 0], 0.5), { value: 1.5, isAbove: false });
  assert.deepEqual(percentile([1, 2, 4], [4, 4, 2, 0], 0.5), { value: 1.25, isAbove: false });
  assert.deepEqual(percentile([1, 2, 4], [5, 5, 0, 0], 0.5), { value: 1, isAbove: false });
});

test("above the last bound only that is known", () => {
  assert.deepEqual(percentile([1, 2], [1, 0, 9], 0.99), { value: 2, isAbove: true });
});

test("no observation has no percentile", () => {
  assert.equal(percentile([1, 2], [0, 0, 0], 0.5), null);
});

test("all kept is 100 %, and nearly all is not", () => {
  assert.equal(share(20, 20), "100 %");
  assert.equal(share(99_999, 100_000), "99.99 %");
  assert.equal(share(999_999, 1_000_000), "99.99 %");
  assert.equal(share(49, 50), "98.0 %");
  assert.equal(share(0, 5), "0 %");
});

test("units follow the size", () => {
  assert.equal(duration(0.0012), "1.2 ms");
  assert.equal(duration(0.25), "250 ms");
  assert.equal(duration(2.44), "2.4 s");
  assert.equal(duration(42), "42 s");
  assert.equal(duration(300), "5 min");
  assert.equal(duration(9000), "2.5 h");
  assert.equal(rate(0), "0");
  assert.equal(rate(3.14), "3.1");
  assert.equal(rate(12_430.4), "12,430");
  assert.equal(several(1, "process", "processes"), "1 process");
  assert.equal(count(12_345), "12,345");
});

test("money has the decimals that its size leaves room for", () => {
  assert.equal(money(1_234_567_890), "1,234.57");
  assert.equal(money(1_234_567), "1.2346");
  assert.equal(money(-1_200), "-0.001200");
  assert.equal(money(0, 1e9), "0.00");
});

test("unseen characters of a name are written out", () => {
  assert.equal(visible("a\u202eb"), "a\\u{202e}b");
  assert.equal(visible("tab\there"), "tab\\u{9}here");
  assert.equal(visible("<img src=x>"), "<img src=x>");
  assert.equal(visible("\ud800"), "\\u{d800}");
  assert.equal(visible("مرحبا"), "مرحبا");
});

test("a long name keeps its begin and its end", () => {
  assert.equal(shorten("abcdefghij", 5), "ab…ij");
  assert.equal(shorten("abcde", 5), "abcde");
  assert.equal(replicaLabel("http://10.0.0.1:8000"), "10.0.0.1:8000");
});

test("a curve is a line between its points", () => {
  const curve = [[1, 100], [3, 80], [9, 20]] as const;
  assert.equal(speedAt(curve, 1), 100);
  assert.equal(speedAt(curve, 2), 90);
  assert.equal(speedAt(curve, 9), 20);
  assert.equal(speedAt(curve, 12), 20);
  assert.equal(speedAt([], 3), 0);
});

test("ticks are round and reach the highest value", () => {
  assert.deepEqual(ticks(91, 4), [0, 25, 50, 75, 100]);
  assert.deepEqual(ticks(2432, 4), [0, 1000, 2000, 3000]);
  assert.deepEqual(ticks(0.9, 3), [0, 0.5, 1]);
});
