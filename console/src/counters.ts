// Counters over time. A counter only grows, except when its process starts again or is not heard for a moment: such a
// step counts as nothing, neither as growth nor as time.

export type Rows = ReadonlyMap<string, readonly number[]>;

export interface Growth {
  by: number[]; // each counter of the row
  over: number; // seconds
}

interface Sample {
  at: number;
  rows: Rows;
}

export class CounterHistory {
  private samples: Sample[] = [];

  /** Samples are kept for `keep` seconds; those older than `fine` seconds only every `coarse` seconds. */
  constructor(
    private readonly keep: number,
    private readonly fine = keep,
    private readonly coarse = 0,
  ) {}

  clear(): void {
    this.samples = [];
  }

  add(at: number, rows: Rows): void {
    const last = this.samples.at(-1);
    if (last && at <= last.at) {
      if (at === last.at) return;
      this.clear(); // another process answers, with a clock of its own
    }
    this.samples.push({ at, rows });
    let before = -Infinity;
    this.samples = this.samples.filter((one, index) => {
      const age = at - one.at;
      // The last one that is too old is the start of the longest window.
      const isNeeded = age <= this.keep || at - (this.samples[index + 1]?.at ?? at) < this.keep;
      const isKept = isNeeded && (age <= this.fine || one.at - before >= this.coarse);
      if (isKept) before = one.at;
      return isKept;
    });
  }

  /** What a row grew by in the last `seconds`; null if there is nothing to compare it with. */
  growth(key: string, seconds: number): Growth | null {
    const end = this.samples.at(-1)?.at ?? 0;
    const by: number[] = [];
    let over = 0;
    for (let index = this.samples.length - 1; index > 0; index -= 1) {
      const [from, to] = [this.samples[index - 1], this.samples[index]] as [Sample, Sample];
      if (end - from.at > seconds + 0.3) break; // polls are not exactly on time
      const [old, now] = [from.rows.get(key), to.rows.get(key)];
      if (!old || !now || now.some((value, at) => value < (old[at] ?? 0))) continue;
      // A row without counters yet counts from zero: a histogram has its buckets from its first observation on.
      if (old.length > 0 && old.length !== now.length) continue;
      for (const [at, value] of now.entries()) by[at] = (by[at] ?? 0) + value - (old[at] ?? 0);
      over += to.at - from.at;
    }
    return over > 0 ? { by, over } : null;
  }
}
