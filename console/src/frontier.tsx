// What each pool's engines can do, what they promise, and where they work now.

import { Name, Section, Standing, useWidth } from "./common";
import type { Floor, Live, Offers, Pool, Replica } from "./contract";
import { speedAt, ticks } from "./curve";
import { count, rate, several } from "./format";
import { shorten, visible } from "./names";
import { streamsOf } from "./observations";
import type { Polled } from "./polling";

const HEIGHT = 270;
const LEFT = 52;
const RIGHT = 14;
const BOTTOM = 40;
const LABEL = 15; // the height of a line of text
const CHARACTER = 6.6; // and the width of a character in it, about

export function Frontiers({ offers, live }: { offers: Polled<Offers>; live: Live }) {
  return (
    <Section
      id="frontier"
      title="Frontier"
      note="How much a replica makes in all, against how fast each of its streams runs. Dots are replicas at the streams they have now, on their measured curve."
    >
      <Standing polled={offers} />
      <div class="charts">
        {offers.data?.pools.map((pool) => (
          <figure key={pool.pool} class="chart">
            <figcaption>
              <Name text={pool.pool} />
              <span class="note">
                {several(pool.seats, "seat")} for each replica
              </span>
            </figcaption>
            {pool.curve.length > 1 ? (
              <Chart pool={pool} replicas={live.replicas.filter((one) => one.pool === pool.pool && one.state !== "closed")} />
            ) : (
              <p class="empty">Not measured. <code>headway calibrate</code> measures a replica.</p>
            )}
          </figure>
        ))}
      </div>
    </Section>
  );
}

interface Dot {
  streams: number;
  isLight: boolean;
  replicas: number;
}

function dotsOf(replicas: Replica[]): Dot[] {
  const dots = new Map<string, Dot>();
  for (const replica of replicas) {
    const streams = streamsOf(replica);
    if (streams === 0) continue;
    const key = `${streams} ${replica.is_light}`;
    const dot = dots.get(key) ?? { streams, isLight: replica.is_light, replicas: 0 };
    dot.replicas += 1;
    dots.set(key, dot);
  }
  return [...dots.values()].sort((one, other) => one.streams - other.streams);
}

function Chart({ pool, replicas }: { pool: Pool; replicas: Replica[] }) {
  const [element, width] = useWidth();
  const dots = dotsOf(replicas);
  const idle = replicas.length - dots.reduce((sum, one) => sum + one.replicas, 0);
  return (
    <>
      <div ref={element} class="chart-area">
        {width > 0 && <Drawing pool={pool} dots={dots} idle={idle} width={width} />}
      </div>
      <p class="legend">
        <span class="tier">
          <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
            <circle class="dot is-light" cx="5" cy="5" r="4" />
          </svg>
          light
        </span>
        <span class="tier">
          <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
            <circle class="dot" cx="5" cy="5" r="3.5" />
          </svg>
          not light
        </span>
        {idle > 0 && <span>{several(idle, "replica")} without a stream</span>}
      </p>
    </>
  );
}

interface DrawingProps {
  pool: Pool;
  dots: Dot[];
  idle: number;
  width: number;
}

function Drawing({ pool, dots, idle, width }: DrawingProps) {
  const { curve } = pool;
  // Two tiers with the same floor share a line.
  const floors = [...Map.groupBy(pool.floors, (floor) => floor.floor_tps)].sort(([one], [other]) => one - other);
  const top = 24 + floors.length * LABEL;
  const xTicks = ticks(Math.max(...curve.map(([, tps]) => tps), ...floors.map(([tps]) => tps)) * 1.12, width / 80);
  const yTicks = ticks(Math.max(...curve.map(([streams, tps]) => streams * tps)) * 1.04, 4);
  const [xEnd, yEnd] = [xTicks.at(-1) ?? 1, yTicks.at(-1) ?? 1];
  const x = (tps: number) => LEFT + ((width - LEFT - RIGHT) * tps) / xEnd;
  const y = (tps: number) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - top) * tps) / yEnd;
  const at = (streams: number): [number, number] => {
    const tps = speedAt(curve, streams);
    return [x(tps), y(tps * streams)];
  };
  const line = curve.map(([streams, tps]) => `${x(tps).toFixed(1)},${y(tps * streams).toFixed(1)}`).join(" ");
  const [first, last] = [curve[0], curve.at(-1)];
  return (
    <svg class="frontier" width={width} height={HEIGHT} role="img" aria-label={inWords(pool, dots, idle)}>
      {yTicks.map((tick) => (
        <g key={tick}>
          <line class="grid" x1={LEFT} x2={width - RIGHT} y1={y(tick)} y2={y(tick)} />
          <text x={LEFT - 6} y={y(tick) + 4} text-anchor="end">
            {rate(tick)}
          </text>
        </g>
      ))}
      {xTicks.map((tick) => (
        <text key={tick} x={x(tick)} y={HEIGHT - BOTTOM + 16} text-anchor="middle">
          {rate(tick)}
        </text>
      ))}
      <text x={(LEFT + width - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">
        tok/s of each stream
      </text>
      <text x="2" y="11">
        tok/s in all
      </text>
      {floors.map(([tps, ofTiers], index) => (
        <FloorLine
          key={tps}
          x={x(tps)}
          // The slowest on top, so that no line crosses the label of a faster one, which is at its right.
          top={top - (floors.length - index) * LABEL}
          text={floorText(tps, ofTiers)}
          end={width}
        />
      ))}
      <polyline class="curve" points={line} />
      {[first, last].map((point) => point && <PointLabel key={point[0]} streams={point[0]} at={at(point[0])} end={width} />)}
      {dots.map((dot) => (
        <g key={`${dot.streams} ${dot.isLight}`}>
          <circle class={`dot ${dot.isLight ? "is-light" : ""}`} cx={at(dot.streams)[0]} cy={at(dot.streams)[1]} r={Math.min(13, 4 + Math.sqrt(dot.replicas))}>
            <title>{dotText(dot)}</title>
          </circle>
        </g>
      ))}
    </svg>
  );
}

/** Above the curve, which falls to the right. */
function PointLabel({ streams, at: [x, y], end }: { streams: number; at: [number, number]; end: number }) {
  const text = several(streams, "stream");
  return (
    <text x={fitted(x + 8, text, end)} y={y - 8}>
      {text}
    </text>
  );
}

/** Where a text begins so that it ends within the drawing. */
function fitted(x: number, text: string, end: number): number {
  return Math.max(0, Math.min(x, end - CHARACTER * text.length));
}

interface FloorLineProps {
  x: number;
  top: number;
  text: string;
  end: number; // of the drawing
}

function FloorLine({ x, top, text, end }: FloorLineProps) {
  return (
    <>
      <line class="floor" x1={x} x2={x} y1={top - 10} y2={HEIGHT - BOTTOM} />
      <text class="floor-label" x={fitted(x + 5, text, end)} y={top}>
        {text}
      </text>
    </>
  );
}

function floorText(tps: number, floors: Floor[]): string {
  const tiers = [...new Set(floors.map((floor) => floor.tier))].map((tier) => shorten(visible(tier), 20)).join(", ");
  return `${tiers}: ${rate(tps)} tok/s, ${count(Math.min(...floors.map((floor) => floor.streams)))} at most`;
}

function dotText(dot: Dot): string {
  return `${several(dot.replicas, dot.isLight ? "light replica" : "other replica")} with ${several(dot.streams, "stream")}`;
}

function inWords(pool: Pool, dots: Dot[], idle: number): string {
  const points = [pool.curve[0], pool.curve.at(-1)]
    .filter((point) => point !== undefined)
    .map(([streams, tps]) => `${several(streams, "stream")} at ${rate(tps)} tok/s each, ${rate(streams * tps)} tok/s in all`);
  const floors = pool.floors.map(
    (floor) => `${floor.tier} keeps ${rate(floor.floor_tps)} tok/s with at most ${several(floor.streams, "stream")}`,
  );
  const now = [...dots.map(dotText), ...(idle > 0 ? [`${several(idle, "replica")} without a stream`] : [])];
  return `${[`Curve from ${points.join(" to ")}`, ...floors, `Now: ${now.join(", ") || "no replica"}`].join(". ")}.`;
}
