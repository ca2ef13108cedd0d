// A measured curve: the speed of each stream by how many there are.

export type Curve = readonly (readonly [streams: number, tps: number])[];

/** Tokens per second of each of so many streams: a straight line between the measured points. */
export function speedAt(curve: Curve, streams: number): number {
  let before = curve[0];
  for (const point of curve) {
    if (before && point[0] >= streams) {
      const part = point[0] === before[0] ? 0 : Math.max(0, streams - before[0]) / (point[0] - before[0]);
      return before[1] + part * (point[1] - before[1]);
    }
    before = point;
  }
  return before?.[1] ?? 0;
}

/** About `wanted` round values from 0 to at least `highest`. */
export function ticks(highest: number, wanted: number): number[] {
  const rough = Math.max(highest, 1e-9) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough) ?? rough;
  return Array.from({ length: Math.ceil(highest / step - 1e-9) + 1 }, (_, index) => index * step);
}
