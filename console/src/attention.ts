// What someone on call should look at first, derived from the newest figures. One sentence each.

import type { Live } from "./contract";
import { count, duration, several, share, span } from "./format";
import { replicaLabel, shorten, visible } from "./names";
import type { Observations } from "./observations";

const LATE_S = 0.05; // of the event loop, at the 99th percentile: streams pause visibly
const FLOORS_KEPT = 0.99;
const NAMED = 3;

export function needsAttention(seen: Observations): string[] {
  const live = seen.latest;
  if (!live) return [];
  return [...ofProcesses(live, seen), ...ofReplicas(live), ...ofTiers(live, seen), ...ofAuto(live)];
}

function ofProcesses(live: Live, seen: Observations): string[] {
  const found: string[] = [];
  const lost = live.cell?.relays.filter((relay) => relay.beat_s === null) ?? [];
  if (lost.length > 0) found.push(`${several(lost.length, "relay")} not connected: ${named(lost.map((one) => one.name))}.`);
  if (live.processes_unanswered > 0)
    found.push(`${several(live.processes_unanswered, "process", "processes")} did not answer: their counts are missing here.`);
  const lag = seen.lagP99();
  if (lag && lag.value > LATE_S)
    found.push(`The event loop is late: ${lag.isAbove ? "more than " : ""}${duration(lag.value)} at the 99th percentile.`);
  return found;
}

function ofReplicas(live: Live): string[] {
  const found: string[] = [];
  const closed = live.replicas.filter((one) => one.state === "closed").map((one) => one.name);
  if (closed.length > 0) found.push(`${several(closed.length, "replica")} closed: ${named(closed)}.`);
  const behind = live.replicas.filter((one) => one.is_behind).map((one) => one.name);
  if (behind.length > 0) found.push(`${several(behind.length, "replica")} with a stream behind its floor: ${named(behind)}.`);
  const strange = live.replicas.filter((one) => one.strangers > 0);
  const strangers = strange.reduce((sum, one) => sum + one.strangers, 0);
  if (strangers > 0)
    found.push(`${several(strangers, "stream")} that nobody here sent: ${named(strange.map((one) => one.name))}.`);
  return found;
}

function ofTiers(live: Live, seen: Observations): string[] {
  const found: string[] = [];
  for (const row of live.tiers) {
    const name = `${shorten(visible(row.model), 40)}, ${row.tier}`;
    const { refused, failed, kept, missed } = seen.figuresOf(row);
    if (row.wanted > row.ready)
      found.push(`${name}: ${several(row.wanted, "seat")} wanted, ${count(row.ready)} ready${held(row.held)}.`);
    const minutes = `in the last ${span(seen.seconds)}`;
    if (refused > 0) found.push(`${name}: ${several(refused, "call")} refused ${minutes}.`);
    if (failed > 0) found.push(`${name}: ${several(failed, "call")} failed ${minutes}.`);
    if (kept + missed > 0 && kept < FLOORS_KEPT * (kept + missed))
      found.push(`${name}: ${share(kept, kept + missed)} of ${several(kept + missed, "floor")} kept ${minutes}.`);
  }
  return found;
}

function held(calls: number): string {
  if (calls === 0) return "";
  return `; ${several(calls, "call")} ${calls === 1 ? "waits" : "wait"}`;
}

function ofAuto(live: Live): string[] {
  return live.auto
    .filter((one) => !one.is_open)
    .map((one) => `${shorten(visible(one.model), 40)}: the gate is closed, so the full model serves every call.`);
}

function named(names: string[]): string {
  const shown = names.slice(0, NAMED).map(replicaLabel).join(", ");
  return names.length > NAMED ? `${shown} and ${count(names.length - NAMED)} more` : shown;
}
