// What the gateway answers to the console, as docs/reference/endpoints.md describes it.

export const TIERS = ["ultrafast", "fast", "standard", "flex"] as const;

/** How many observations fell into each bucket. `counts` has one more, for those above the last bound. */
export interface Histogram {
  buckets: number[];
  counts: number[];
}

export interface Relay {
  name: string;
  calls: number;
  beat_s: number | null;
}

export interface Cell {
  role: string;
  epoch: number;
  lag_s: number | null;
  relays: Relay[];
}

export interface Replica {
  name: string;
  pool: string;
  state: "open" | "draining" | "closed";
  seats: number;
  light_seats: number;
  is_light: boolean;
  is_retiring: boolean;
  is_behind: boolean;
  aboard: Record<string, number>;
  strangers: number;
  tokens: number | null;
}

export interface TierRow {
  model: string;
  tier: string;
  pool: string;
  floor_tps: number | null;
  target_tps: number | null;
  price_multiple: number | null;
  wanted: number;
  ready: number;
  held: number;
  calls: Record<string, number>;
  kept: number;
  missed: number;
  prompt_tokens: number;
  output_tokens: number;
  first_token: Histogram;
  speed: Histogram;
}

export interface AutoModel {
  model: string;
  is_open: boolean;
  audits_waiting: number;
  student: number;
  full: number;
  audits: Record<string, number>;
}

export interface Live {
  at: number;
  version: string;
  cell: Cell | null;
  processes_unanswered: number;
  lag: Histogram;
  sockets: number;
  replicas: Replica[];
  more_replicas: number;
  tiers: TierRow[];
  auto: AutoModel[];
}

export interface Floor {
  model: string;
  tier: string;
  floor_tps: number;
  streams: number;
}

export interface Pool {
  pool: string;
  seats: number;
  curve: [number, number][];
  floors: Floor[];
}

export interface Offer {
  model: string;
  kind: string;
  auto: boolean;
  tiers: string[];
  price: { input: number; output: number; cached_input: number | null } | null;
}

export interface Offers {
  pools: Pool[];
  models: Offer[];
}

export interface MoneyRow {
  model: string;
  tier: string;
  calls: number;
  prompt_tokens: number;
  output_tokens: number;
  revenue_micro: number;
  refunded_micro: number;
  cost_micro: number | null;
  seat_us: number;
}

export interface Money {
  day: string;
  as_of: number;
  tiers: MoneyRow[];
}

export interface KeyRow {
  id: string;
  name: string;
  is_revoked: boolean;
  calls_today: number;
  spent_today_micro: number;
  budget_day_micro: number | null;
  reserved_month_micro: number | null; // spent, or held by gateways for calls; null without a budget
  budget_month_micro: number | null;
  requests_per_minute: number | null;
  fast_requests_per_minute: number | null;
}

export interface Keys {
  keys: KeyRow[];
  more_keys: number;
}

export interface MistakeRow {
  target: string;
  tasks: number;
  right: number;
  right_low: number;
  right_high: number;
  answer_s: number | null;
  time_to_right_s: number | null;
  excess: number | null;
  excess_low: number | null;
  excess_high: number | null;
  cost_per_right_micro: number | null;
  is_recommended: boolean;
}

export interface Mistakes {
  at: string;
  tasks: string;
  is_clear: boolean; // the lead of the recommended one
  rows: MistakeRow[];
}
