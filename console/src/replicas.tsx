// All replicas by pool, as buses or, where there are many, as lines.

import { useState } from "preact/hooks";
import { Bus, BusLine, openSeats } from "./bus";
import { Name, Section, TierName } from "./common";
import { TIERS, type Live, type Replica } from "./contract";
import { count, rate, several } from "./format";
import { shorten, visible } from "./names";
import { streamsOf, type Observations } from "./observations";

const MOST_BUSES = 40; // unless asked for
type Shown = "all" | "light" | "heavy" | "not open" | "behind";

const SHOWN: Record<Shown, (one: Replica) => boolean> = {
  all: () => true,
  light: (one) => one.is_light,
  heavy: (one) => !one.is_light,
  "not open": (one) => one.state !== "open" || one.is_retiring,
  behind: (one) => one.is_behind,
};

export function Replicas({ live, seen }: { live: Live; seen: Observations }) {
  const [asked, setAsked] = useState<"buses" | "lines" | null>(null);
  const [shown, setShown] = useState<Shown>("all");
  const [text, setText] = useState("");
  const form = asked ?? (live.replicas.length > MOST_BUSES ? "lines" : "buses");
  const listed = live.replicas.filter((one) => SHOWN[shown](one) && one.name.toLowerCase().includes(text.toLowerCase()));
  const pools = [...new Set(live.replicas.map((one) => one.pool))];
  return (
    <Section
      id="replicas"
      title="Replicas"
      note={<Legend />}
      aside={
        <>
          <label>
            <span class="heard">Replicas whose name contains</span>
            <input type="search" placeholder="Name" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
          <label>
            <span class="heard">Which replicas</span>
            <select value={shown} onChange={(event) => setShown(event.currentTarget.value as Shown)}>
              {Object.keys(SHOWN).map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          <span class="switch" role="group" aria-label="Form">
            {(["buses", "lines"] as const).map((one) => (
              <button key={one} type="button" aria-pressed={form === one} onClick={() => setAsked(one)}>
                {one}
              </button>
            ))}
          </span>
        </>
      }
    >
      {live.replicas.length === 0 && <p class="empty">There are no replicas.</p>}
      {live.replicas.length > 0 && listed.length === 0 && <p class="empty">No replica is like that.</p>}
      {pools.map((pool) => (
        <PoolOf key={pool} pool={pool} all={live.replicas} listed={listed} form={form} seen={seen} />
      ))}
      {live.more_replicas > 0 && (
        <p class="empty">{several(live.more_replicas, "more replica")} not listed. Those that take no calls are listed first.</p>
      )}
    </Section>
  );
}

interface PoolOfProps {
  pool: string;
  all: Replica[];
  listed: Replica[];
  form: "buses" | "lines";
  seen: Observations;
}

function PoolOf({ pool, all, listed, form, seen }: PoolOfProps) {
  const [mine, here] = [all, listed].map((list) => list.filter((one) => one.pool === pool)) as [Replica[], Replica[]];
  if (here.length === 0) return null;
  const Form = form === "buses" ? Bus : BusLine;
  const rows = here.map((one) => <Form key={one.name} replica={one} speed={seen.speedOf(one.name)} />);
  const label = `Replicas of ${shorten(visible(pool), 60)}`;
  return (
    <>
      <h3 class="pool">
        <Name text={pool} />
        <span class="note">{summary(mine, seen)}</span>
      </h3>
      {form === "buses" ? (
        <ul class="buses" aria-label={label}>
          {rows}
        </ul>
      ) : (
        <div class="scroll lines-scroll" role="region" aria-label={`${label}, as lines`} tabIndex={0}>
          <ul class="lines" aria-label={label}>
            {rows}
          </ul>
        </div>
      )}
    </>
  );
}

function summary(replicas: Replica[], seen: Observations): string {
  const open = replicas.filter((one) => one.state === "open");
  const light = open.filter((one) => one.is_light).length;
  const speeds = replicas.map((one) => seen.speedOf(one.name));
  const speed = speeds.reduce((sum, one) => sum + (one?.all ?? 0), 0);
  const streams = replicas.reduce((sum, one) => sum + streamsOf(one), 0);
  const seats = open.reduce((sum, one) => sum + openSeats(one), 0);
  const known = speeds.some((one) => one !== null) ? `, ${rate(speed)} tok/s` : "";
  return `${count(open.length)} of ${several(replicas.length, "replica")} open, ${count(light)} light; ${several(streams, "stream")}, ${several(seats, "open seat")}${known}`;
}

function Legend() {
  return (
    <span class="legend">
      {[...TIERS, "strangers"].map((tier) => (
        <TierName key={tier} tier={tier} />
      ))}
      <Mark kind="free" path="M1.5 1.5h7v7h-7z" label="free" />
      <Mark kind="shut" path="M1.5 1.5h7v7h-7zm3.5 0v7" label="shut while light" />
    </span>
  );
}

function Mark({ kind, path, label }: { kind: string; path: string; label: string }) {
  return (
    <span class="tier">
      <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
        <path class={`seat seat-${kind}`} d={path} />
      </svg>
      {label}
    </span>
  );
}
