// Percentiles of what was counted in buckets.

export interface Estimate {
  value: number;
  isAbove: boolean; // more than the last bound: only that is known
}

/** The value below which the fraction `q` of the observations are, by a straight line within its bucket. */
export function percentile(buckets: readonly number[], counts: readonly number[], q: number): Estimate | null {
  const total = counts.reduce((sum, one) => sum + one, 0);
  if (total <= 0) return null;
  const rank = q * total;
  let below = 0;
  for (const [index, bound] of buckets.entries()) {
    const here = counts[index] ?? 0;
    if (here > 0 && below + here >= rank) {
      const from = index === 0 ? 0 : (buckets[index - 1] ?? 0);
      return { value: from + ((bound - from) * (rank - below)) / here, isAbove: false };
    }
    below += here;
  }
  return { value: buckets.at(-1) ?? 0, isAbove: true };
}
