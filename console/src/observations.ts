// What follows from several answers of /admin/live: rates, percentiles, and the trails behind the sparklines.
// Knows no clock: times are the gateway's own.

import type { Live, Replica, TierRow } from "./contract";
import { CounterHistory, type Growth } from "./counters";
import { percentile, type Estimate } from "./histogram";

export const MINUTE_S = 60;
export const MINUTES_S = 300; // of refusals and floors
const SPEED_S = 5;
const TRAIL_S = 120;

// What of a tier's row is counted, in the order of its counters.
const COUNTED = ["refused", "failed", "calls", "kept", "missed", "prompt_tokens", "output_tokens"] as const;
type Counted = (typeof COUNTED)[number];

/** What the gateway did at one moment, in all. */
export interface Moment {
  at: number;
  tokens: number | null; // per second
  streams: number;
  held: number;
}

export interface ReplicaSpeed {
  all: number;
  each: number | null; // of its streams, at the mean; null without a stream
}

export interface TierFigures {
  calls: number | null; // per second
  prompt: number | null; // tok/s
  output: number | null; // tok/s
  refused: number;
  failed: number;
  kept: number;
  missed: number;
  firstToken: { p50: Estimate; p95: Estimate } | null;
  speed: Estimate | null;
}

export class Observations {
  latest: Live | null = null;
  trail: Moment[] = [];
  private began = 0;
  private streamSeconds = new Map<string, number>(); // of each replica: a counter, as its tokens are
  private figures = new Map<string, TierFigures>(); // of the latest, once they were asked for
  private speeds = new Map<string, ReplicaSpeed | null>(); // the same
  private readonly tiers = new CounterHistory(MINUTES_S, MINUTE_S + 1, 5);
  private readonly tokens = new CounterHistory(SPEED_S);
  private readonly lag = new CounterHistory(MINUTE_S);

  take(live: Live): void {
    const before = this.latest;
    if (before && live.at === before.at) return; // one snapshot answers several polls
    const isSame = before !== null && live.at > before.at && live.processes_unanswered === before.processes_unanswered;
    if (!isSame) {
      // Other processes are counted now: their counters cannot be compared with those of before.
      for (const one of [this.tiers, this.tokens, this.lag]) one.clear();
      this.began = live.at;
      if (before && live.at <= before.at) this.trail = [];
    }
    this.latest = live;
    this.figures.clear();
    this.speeds.clear();
    this.countStreams(live, isSame ? live.at - before.at : 0);
    this.tiers.add(live.at, new Map(live.tiers.flatMap(countersOf)));
    const known = live.replicas.filter((one) => one.tokens !== null);
    this.tokens.add(live.at, new Map(known.map((one) => [one.name, this.countersOfReplica(one)])));
    this.lag.add(live.at, new Map([["lag", live.lag.counts]]));
    this.trail.push({
      at: live.at,
      tokens: this.tokensPerSecond(live),
      streams: live.replicas.reduce((sum, one) => sum + streamsOf(one), 0),
      held: live.tiers.reduce((sum, row) => sum + row.held, 0),
    });
    this.trail = this.trail.filter((one) => live.at - one.at <= TRAIL_S);
  }

  /** How long counters have been compared, at most `MINUTES_S`. */
  get seconds(): number {
    return Math.min(MINUTES_S, (this.latest?.at ?? 0) - this.began);
  }

  /** Output tokens per second of a replica over the last seconds. */
  speedOf(replica: string): ReplicaSpeed | null {
    let speed = this.speeds.get(replica);
    if (speed === undefined) {
      speed = speedFrom(this.tokens.growth(replica, SPEED_S));
      this.speeds.set(replica, speed);
    }
    return speed;
  }

  lagP99(): Estimate | null {
    const growth = this.lag.growth("lag", MINUTE_S);
    return growth && percentile(this.latest?.lag.buckets ?? [], growth.by, 0.99);
  }

  figuresOf(row: TierRow): TierFigures {
    const key = tierKey(row);
    const figures = this.figures.get(key) ?? this.workOut(row, key);
    this.figures.set(key, figures);
    return figures;
  }

  private workOut(row: TierRow, key: string): TierFigures {
    const [minute, minutes] = [this.tiers.growth(key, MINUTE_S), this.tiers.growth(key, MINUTES_S)];
    const perSecond = (name: Counted) => minute && (minute.by[COUNTED.indexOf(name)] ?? 0) / minute.over;
    const inMinutes = (name: Counted) => minutes?.by[COUNTED.indexOf(name)] ?? 0;
    const estimate = (name: "first_token" | "speed", q: number) =>
      percentile(row[name].buckets, this.tiers.growth(`${key} ${name}`, MINUTE_S)?.by ?? [], q);
    const [p50, p95] = [estimate("first_token", 0.5), estimate("first_token", 0.95)];
    return {
      calls: perSecond("calls"),
      prompt: perSecond("prompt_tokens"),
      output: perSecond("output_tokens"),
      refused: inMinutes("refused"),
      failed: inMinutes("failed"),
      kept: inMinutes("kept"),
      missed: inMinutes("missed"),
      firstToken: p50 && p95 && { p50, p95 },
      speed: estimate("speed", 0.5),
    };
  }

  private countStreams(live: Live, seconds: number): void {
    const before = this.streamSeconds;
    this.streamSeconds = new Map(
      live.replicas.map((one) => {
        const ours = streamsOf(one) - one.strangers; // nobody here reads the others' tokens
        return [one.name, (before.get(one.name) ?? 0) + seconds * ours];
      }),
    );
  }

  private countersOfReplica(replica: Replica): number[] {
    return [replica.tokens ?? 0, this.streamSeconds.get(replica.name) ?? 0];
  }

  /** As replicas deliver them, where all of them tell; else as calls end. */
  private tokensPerSecond(live: Live): number | null {
    const speeds = doAllTell(live)
      ? live.replicas.map((one) => this.speedOf(one.name)?.all ?? null)
      : live.tiers.map((row) => this.figuresOf(row).output);
    return speeds.every((one) => one === null) ? null : sum(speeds);
  }
}

function speedFrom(growth: Growth | null): ReplicaSpeed | null {
  if (!growth) return null;
  const [tokens = 0, streamSeconds = 0] = growth.by;
  return { all: tokens / growth.over, each: streamSeconds > 0 ? tokens / streamSeconds : null };
}

function sum(values: (number | null)[]): number {
  return values.reduce<number>((all, one) => all + (one ?? 0), 0);
}

function tierKey(row: TierRow): string {
  return JSON.stringify([row.model, row.tier]);
}

function countersOf(row: TierRow): [string, number[]][] {
  const calls = Object.values(row.calls).reduce((all, one) => all + one, 0);
  const { refused = 0, failed = 0 } = row.calls;
  const counted = { ...row, calls, refused, failed };
  const key = tierKey(row);
  return [
    [key, COUNTED.map((name) => counted[name])],
    [`${key} first_token`, row.first_token.counts],
    [`${key} speed`, row.speed.counts],
  ];
}

/** Whether every replica is listed and tells its tokens. */
export function doAllTell(live: Live): boolean {
  return live.more_replicas === 0 && live.replicas.every((one) => one.tokens !== null);
}

/** All streams that the engine runs, whoever sent them. */
export function streamsOf(replica: Replica): number {
  return Object.values(replica.aboard).reduce((all, one) => all + one, replica.strangers);
}

/** The state of a replica in words. */
export function wordsOf(replica: Replica): string[] {
  const words: string[] = [];
  if (replica.state !== "open") words.push(replica.state);
  if (replica.light_seats > 0) words.push(replica.is_light ? "light" : "heavy");
  if (replica.is_retiring) words.push("retiring");
  if (replica.is_behind) words.push("behind its floor");
  return words.length > 0 ? words : ["open"];
}
