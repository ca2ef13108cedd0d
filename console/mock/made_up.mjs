// MADE-UP figures for developing the console: a small fleet whose streams come and go by dice. No figure here was
// measured, and no rule of the gateway is followed closely.

const FIRST_TOKEN = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const SPEED = [5, 10, 15, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300];
const LAG = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5];
const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "\u202egnp.exe\u202c \u200f\u05d0\u05d1\u05d2",
  `${"a-name-of-three-hundred-characters-".repeat(9)}`.slice(0, 300),
  "'\"></script><script>alert(1)</script>",
];
const CURVE = [[1, 91], [2, 88], [4, 82], [8, 72], [16, 61], [32, 49], [64, 38]];
const SMALL = [[1, 176], [4, 160], [8, 141], [16, 118]];

const dice = (mean) => -Math.log(1 - Math.random()) * mean;
const micro = (value) => Math.round(value * 1e6);

function bucket(histogram, value) {
  const index = histogram.buckets.findIndex((bound) => value <= bound);
  histogram.counts[index < 0 ? histogram.buckets.length : index] += 1;
}

const empty = (buckets) => ({ buckets, counts: Array(buckets.length + 1).fill(0) });

function speedAt(curve, streams) {
  const after = curve.find(([n]) => n >= streams) ?? curve.at(-1);
  const before = curve.findLast(([n]) => n <= streams) ?? curve[0];
  if (after[0] === before[0]) return after[1];
  return before[1] + ((after[1] - before[1]) * (streams - before[0])) / (after[0] - before[0]);
}

export class MadeUp {
  constructor({ replicas, hostile, bare }) {
    this.bare = bare;
    this.hostile = hostile;
    const [big, small] = hostile ? [HOSTILE[0], HOSTILE[2]] : ["llama-3.3-70b", "qwen3-8b"];
    this.pools = [
      { pool: big, seats: 64, curve: CURVE, light: 16, floors: [["fast", 60, 16], ["ultrafast", 85, 3]] },
      { pool: small, seats: 16, curve: SMALL, light: 8, floors: [["fast", 140, 8]] },
    ];
    this.replicas = Array.from({ length: replicas }, (_, index) => this.replica(index, replicas));
    this.tiers = [
      this.tier(big, "standard", null, 1, 0.45 * replicas),
      this.tier(big, "fast", 60, 2.3, 0.12 * replicas),
      this.tier(big, "ultrafast", 85, 4.1, 0.01 * replicas),
      this.tier(big, "flex", null, 0.5, 0.1 * replicas),
      this.tier(small, "standard", null, 1, 0.25 * replicas),
      this.tier(small, "fast", 140, 1.8, 0.15 * replicas),
    ];
    this.lag = empty(LAG);
    this.at = Date.now() / 1e3;
    setInterval(() => this.step(), 100).unref();
    for (let second = 0; second < 60; second += 0.1) this.play(0.1);
  }

  replica(index, all) {
    const pool = this.pools[index % 7 < 5 ? 0 : 1];
    const nth = index % 7;
    const url = `http://10.0.${Math.floor(index / 250)}.${(index % 250) + 1}:8000`;
    return {
      name: this.hostile && index < HOSTILE.length ? HOSTILE[index] : url,
      pool,
      state: nth === 4 && index > 6 ? "closed" : nth === 3 && all > 6 && index < 7 ? "draining" : "open",
      seats: index === 11 ? 192 : pool.seats,
      isLight: nth === 0 || nth === 5,
      isRetiring: nth === 0 && index > 6,
      streams: [],
      strangers: nth === 2 && index < 7 ? 2 : 0,
      tokens: 1e6 + index,
      part: 0,
    };
  }

  tier(model, tier, floor, multiple, perSecond) {
    return {
      model, tier, floor, multiple, perSecond, due: 0,
      held: 0, calls: { finished: 4000, left: 31, refused: 0, failed: 0 }, kept: floor ? 3992 : 0, missed: floor ? 8 : 0,
      prompt: 3e6, output: 1e6, first: empty(FIRST_TOKEN), speed: empty(SPEED), spent: 0, seatUs: 0,
    };
  }

  step() {
    const now = Date.now() / 1e3;
    this.play(Math.min(1, now - this.at));
    this.at = now;
    for (let index = 0; index < 10; index += 1) bucket(this.lag, dice(0.0008));
  }

  play(seconds) {
    for (const row of this.tiers) {
      row.due += seconds * row.perSecond * (1 + 0.5 * Math.sin(Date.now() / 2e4));
      for (; row.due >= 1; row.due -= 1) this.arrive(row);
    }
    for (const replica of this.replicas) this.run(replica, seconds);
  }

  arrive(row) {
    const isExpress = row.floor !== null;
    const room = (one) => (one.isLight ? one.pool.light : one.seats) - one.streams.length - one.strangers;
    const mine = this.replicas.filter(
      (one) => one.pool.pool === row.model && one.state === "open" && (!isExpress || one.isLight) && room(one) > 0,
    );
    const best = mine.sort((one, other) => room(other) - room(one))[isExpress ? 0 : Math.floor(dice(0.7)) % mine.length];
    if (!best) {
      row.calls.refused += 1;
      return;
    }
    const first = 0.05 + dice(0.12);
    bucket(row.first, first);
    best.streams.push({ row, made: 0, length: 16 + dice(420), began: 0, first });
    row.prompt += Math.round(200 + dice(900));
  }

  run(replica, seconds) {
    const tps = speedAt(replica.pool.curve, replica.streams.length + replica.strangers) * (0.97 + 0.06 * Math.random());
    for (const stream of replica.streams) {
      stream.began += seconds;
      stream.made += seconds * tps;
      replica.part += seconds * tps;
    }
    replica.tokens += Math.floor(replica.part);
    replica.part %= 1;
    for (const stream of replica.streams.filter((one) => one.made >= one.length)) this.end(stream, tps);
    replica.streams = replica.streams.filter((one) => one.made < one.length);
  }

  end({ row, made, began }) {
    const speed = made / began;
    row.calls.finished += 1;
    row.output += Math.round(made);
    row.spent += micro((made * row.multiple * 1.5) / 1e6);
    row.seatUs += micro(began / 12);
    bucket(row.speed, speed);
    if (row.floor === null) return;
    if (speed >= row.floor) row.kept += 1;
    else row.missed += 1;
  }

  aboard(replica) {
    const aboard = {};
    for (const { row } of replica.streams) aboard[row.tier] = (aboard[row.tier] ?? 0) + 1;
    return aboard;
  }

  live() {
    const order = { closed: 0, draining: 1, open: 2 };
    return {
      at: this.at,
      version: "0.2.0rc1",
      cell: this.bare ? null : {
        role: "leader", epoch: 7, lag_s: 0.0021,
        relays: [
          { name: this.hostile ? HOSTILE[3] : "relay-1", calls: 41, beat_s: 0.08 },
          { name: "relay-2", calls: 39, beat_s: 0.11 },
          { name: "relay-3", calls: 0, beat_s: null },
        ],
      },
      processes_unanswered: 0,
      lag: this.lag,
      sockets: 3,
      replicas: this.replicas.slice(0, 500).map((one) => ({
        name: one.name, pool: one.pool.pool, state: one.state, seats: one.seats, light_seats: one.pool.light,
        is_light: one.isLight, is_retiring: one.isRetiring, is_behind: one === this.replicas[5] && Math.sin(Date.now() / 5e3) > 0.6,
        aboard: this.aboard(one), strangers: one.strangers, tokens: one.tokens,
      })).sort((one, other) => order[one.state] - order[other.state]),
      more_replicas: Math.max(0, this.replicas.length - 500),
      tiers: this.tiers.map((row) => this.tierRow(row)),
      auto: [{ model: `${this.tiers[0].model}-auto`, is_open: !this.hostile, audits_waiting: 2, student: 553, full: 451, audits: { same: 208, differs: 1, expired: 2 } }],
    };
  }

  tierRow(row) {
    const mine = this.replicas.filter((one) => one.pool.pool === row.model && one.state === "open");
    const express = row.floor !== null;
    const taken = mine.flatMap((one) => one.streams).filter((one) => one.row === row).length;
    const free = mine.filter((one) => one.isLight === express)
      .reduce((sum, one) => sum + (one.isLight ? one.pool.light : one.seats) - one.streams.length, 0);
    return {
      model: row.model, tier: row.tier, pool: row.model, floor_tps: row.floor, target_tps: row.tier === "fast" && row.floor > 100 ? 150 : null,
      price_multiple: row.multiple, wanted: taken + (express ? 6 : 0), ready: taken + Math.max(0, row.tier === "ultrafast" ? 2 : free), held: row.held,
      calls: row.calls, kept: row.kept, missed: row.missed, prompt_tokens: row.prompt, output_tokens: row.output,
      first_token: row.first, speed: row.speed,
    };
  }

  offers() {
    return {
      currency_note: "in the currency of headway.toml",
      pools: [
        ...this.pools.map((one) => ({
          pool: one.pool, seats: one.seats, curve: one.curve,
          floors: one.floors.map(([tier, floor_tps, streams]) => ({ model: one.pool, tier, floor_tps, streams })),
        })),
        { pool: "not-measured", seats: 8, curve: [], floors: [] },
      ],
      models: [
        ...this.pools.map((one) => ({ model: one.pool, kind: "chat", auto: false, tiers: this.tiers.filter((row) => row.model === one.pool).map((row) => row.tier), price: { input: 0.5, output: 1.5, cached_input: null } })),
        { model: `${this.pools[0].pool}-auto`, kind: "chat", auto: true, tiers: ["standard"], price: null },
        { model: "embedder", kind: "embeddings", auto: false, tiers: ["standard"], price: null },
      ],
    };
  }

  money() {
    if (this.bare) return null;
    return {
      day: new Date().toISOString().slice(0, 10), as_of: this.at,
      tiers: this.tiers.map((row) => ({
        model: row.model, tier: row.tier, calls: row.calls.finished, prompt_tokens: row.prompt, output_tokens: row.output,
        revenue_micro: 14e6 + row.spent * 40, refunded_micro: -41000 * row.missed, seat_us: 4e9 + row.seatUs,
        cost_micro: row.model === this.tiers[5].model ? null : 11e6 + row.spent * 20 + (row.tier === "flex" ? 9e6 : 0),
      })),
    };
  }

  keys() {
    if (this.bare) return null;
    const names = this.hostile ? HOSTILE : ["team-search", "agents", "batch-nightly", "notebooks"];
    return {
      keys: names.map((name, index) => ({
        id: `key-${"3f9ac2d17b"[index]}81c0e4`, name, is_revoked: index === 3, calls_today: [1204, 377, 90, 0][index],
        spent_today_micro: [812_345, 4_120_000, 5_000_000, 0][index] ?? 0, reserved_month_micro: [20_812_345, 71_000_000, 65_000_000, 1_200][index] ?? 0,
        budget_day_micro: [null, 5_000_000, 5_000_000, null][index] ?? null, budget_month_micro: [100_000_000, null, 100_000_000, null][index] ?? null,
        requests_per_minute: [600, null, 60, null][index] ?? null, fast_requests_per_minute: [60, 120, 0, null][index] ?? null,
      })),
      more_keys: 12,
    };
  }

  mistakes() {
    if (this.bare) return null;
    const row = (target, right, answer_s, excess) => ({
      target, tasks: 320, right, right_low: right - 0.025, right_high: Math.min(1, right + 0.02), answer_s, time_to_right_s: answer_s / right + 40 * (1 - right),
      excess, excess_low: excess === null ? null : excess - 0.006, excess_high: excess === null ? null : excess + 0.009, cost_per_right_micro: micro(0.0003 * (2 - right)), is_recommended: target === "fast",
    });
    return {
      at: "2026-11-17T10:00:00+00:00", tasks: "bfcl", is_clear: true,
      rows: [
        row("standard", 0.951, 12.4, null),
        row("fast", 0.951, 4.9, 0.0),
        row("llama-spark", 0.882, 1.4, 0.078),
        row(this.hostile ? HOSTILE[2] : "llama-3.3-70b-auto", 0.944, 2.9, 0.009),
      ],
    };
  }
}
