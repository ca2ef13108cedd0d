// A replica as a bus: its seats, who sits in them, and which doors are closed.

import { Component } from "preact";
import { TIERS, type Replica } from "./contract";
import { count, rate, several } from "./format";
import { replicaLabel, visible } from "./names";
import { streamsOf, wordsOf, type ReplicaSpeed } from "./observations";

const COLUMNS = 16;
const PITCH = 14;
const SEAT = 10;
const PAD = 9;
const FRONT = 12; // the driver's
const MOST_DRAWN = 128;

interface BusProps {
  replica: Replica;
  speed: ReplicaSpeed | null; // output tok/s
}

type Taken = [kind: string, seats: number][];

/** Who has the seats, in the order in which they are drawn. */
export function takenSeats(replica: Replica): Taken {
  const others = Object.keys(replica.aboard).filter((tier) => !(TIERS as readonly string[]).includes(tier));
  const taken: Taken = [...TIERS, ...others].map((tier) => [tier, replica.aboard[tier] ?? 0]);
  return [...taken, ["strangers", replica.strangers] as [string, number]].filter(([, seats]) => seats > 0);
}

/** The seats that others may take: fewer than there are while the replica is light. */
export function openSeats(replica: Replica): number {
  return replica.is_light ? Math.min(replica.light_seats, replica.seats) : replica.seats;
}

function inWords(replica: Replica): string {
  const taken = takenSeats(replica).map(([kind, seats]) => `${visible(kind)} ${count(seats)}`);
  return taken.length > 0 ? taken.join(", ") : "empty";
}

/** Draws again only what has changed: there may be hundreds, twice a second. */
abstract class Drawn extends Component<BusProps> {
  private drawn = signature(this.props);

  shouldComponentUpdate(next: BusProps): boolean {
    const before = this.drawn;
    this.drawn = signature(next);
    return this.drawn !== before;
  }
}

function signature({ replica, speed }: BusProps): string {
  return JSON.stringify([{ ...replica, tokens: null }, speed && rate(speed.all), speed?.each && rate(speed.each)]);
}

export class Bus extends Drawn {
  render({ replica, speed }: BusProps) {
    const streams = streamsOf(replica);
    const open = openSeats(replica);
    const each = speed?.each && streams > 0 ? `, ${rate(speed.each)} each` : "";
    return (
      <li class={`bus ${replica.state === "open" ? "" : "takes-none"}`}>
        <div class="bus-head">
          <bdi class="name" title={visible(replica.name)}>
            {replicaLabel(replica.name)}
          </bdi>
          <Words replica={replica} />
        </div>
        {replica.seats <= MOST_DRAWN ? <Body replica={replica} /> : <Load replica={replica} />}
        <p class="bus-figures">
          <span>
            {count(streams)} of {several(open, replica.is_light ? "light seat" : "seat")}
          </span>
          <span>{speed === null ? "speed not known" : `${rate(speed.all)} tok/s${each}`}</span>
        </p>
        <p class="bus-taken">
          {inWords(replica)}
          {open < replica.seats && `; ${several(replica.seats - open, "seat")} shut`}
        </p>
      </li>
    );
  }
}

/** One line for a replica, where there are many. */
export class BusLine extends Drawn {
  render({ replica, speed }: BusProps) {
    return (
      <li class={`bus-line ${replica.state === "open" ? "" : "takes-none"}`}>
        <bdi class="name" title={visible(replica.name)}>
          {replicaLabel(replica.name)}
        </bdi>
        <Words replica={replica} />
        <Load replica={replica} />
        <span class="line-figures">
          {count(streamsOf(replica))}/{several(openSeats(replica), "seat")}
        </span>
        <span class="line-figures">{speed === null ? "– tok/s" : `${rate(speed.all)} tok/s`}</span>
      </li>
    );
  }
}

function Words({ replica }: { replica: Replica }) {
  return (
    <span class="words">
      {wordsOf(replica).map((word) => (
        <span key={word} class={`word word-${word.split(" ")[0]}`}>
          {word}
        </span>
      ))}
    </span>
  );
}

/** Each seat as a square. */
function Body({ replica }: { replica: Replica }) {
  const columns = Math.min(COLUMNS, replica.seats);
  const rows = Math.ceil(replica.seats / COLUMNS);
  const width = 2 * PAD + columns * PITCH - (PITCH - SEAT) + FRONT;
  const height = 2 * PAD + rows * PITCH - (PITCH - SEAT);
  const kinds = takenSeats(replica).flatMap(([kind, seats]) => Array<string>(Math.min(seats, MOST_DRAWN)).fill(kind));
  const open = openSeats(replica);
  const drawn = new Map<string, string>();
  for (let seat = 0; seat < Math.max(replica.seats, 0); seat += 1) {
    const kind = kinds[seat] ?? (seat < open ? "free" : "shut");
    const x = PAD + (seat % COLUMNS) * PITCH;
    const y = PAD + Math.floor(seat / COLUMNS) * PITCH;
    drawn.set(kind, `${drawn.get(kind) ?? ""}${SHAPES[kind]?.(x, y) ?? square(x, y)}`);
  }
  const widest = 2 * PAD + COLUMNS * PITCH - (PITCH - SEAT) + FRONT;
  const label = `${count(streamsOf(replica))} of ${several(replica.seats, "seat")} taken: ${inWords(replica)}. ${wordsOf(replica).join(", ")}.`;
  return (
    <svg class="bus-body" viewBox={`0 0 ${widest + 2} ${height + 8}`} role="img" aria-label={label}>
      <path class="hull" d={hull(width, height)} />
      <path class="windscreen" d={`M${width - 7} ${PAD}v${Math.max(SEAT, height - 2 * PAD)}`} />
      <circle class="wheel" cx={24} cy={height + 2} r="4.5" />
      <circle class="wheel" cx={Math.max(40, width - 28)} cy={height + 2} r="4.5" />
      {[...drawn].map(([kind, path]) => (
        <path key={kind} class={`seat seat-${kind}`} d={path} />
      ))}
    </svg>
  );
}

function hull(width: number, height: number): string {
  return `M6 1H${width - 11}q11 0 11 11V${height - 4}q0 5 -5 5H6q-5 0 -5 -5V6q0 -5 5 -5z`;
}

function square(x: number, y: number): string {
  return `M${x + 1} ${y + 1}h${SEAT - 2}v${SEAT - 2}h${2 - SEAT}z`;
}

const SHAPES: Record<string, (x: number, y: number) => string> = {
  // Two leaves of a door.
  shut: (x, y) => `${square(x, y)}m${SEAT / 2 - 1} 0v${SEAT - 2}`,
  strangers: (x, y) => `${square(x, y)}l${SEAT - 2} ${SEAT - 2}`,
};

/** The seats as one bar, with the closed doors behind a line. */
function Load({ replica }: { replica: Replica }) {
  const scale = 100 / Math.max(1, replica.seats, streamsOf(replica));
  const open = openSeats(replica);
  let from = 0;
  return (
    <svg
      class="load"
      viewBox="0 0 100 8"
      preserveAspectRatio="none"
      role="img"
      aria-label={`${count(streamsOf(replica))} of ${several(replica.seats, "seat")} taken: ${inWords(replica)}`}
    >
      <rect class="load-free" x="0" y="0" width={open * scale} height="8" />
      <rect class="load-shut" x={open * scale} y="3" width={Math.max(0, replica.seats - open) * scale} height="2" />
      {takenSeats(replica).map(([kind, seats]) => {
        const x = from * scale;
        from += seats;
        return <rect key={kind} class={`load-taken seat-${kind}`} x={x} y="0" width={seats * scale} height="8" />;
      })}
    </svg>
  );
}
