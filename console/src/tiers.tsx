// One row for each model and tier.

import { Figure, Name, Section, Table, TierName, Time } from "./common";
import type { Live, TierRow } from "./contract";
import { count, largeCount, rate, share, span } from "./format";
import type { Observations } from "./observations";

export function Tiers({ live, seen }: { live: Live; seen: Observations }) {
  const minutes = span(seen.seconds);
  return (
    <Section
      id="tiers"
      title="Tiers"
      note={`Rates and percentiles are of the last minute; refusals and floors of the last ${minutes}, as this page saw them; "in all" is since the gateway's start.`}
    >
      {live.tiers.length === 0 ? (
        <p class="empty">No model is offered.</p>
      ) : (
        <Table caption="Models and tiers">
          <thead>
            <tr>
              <th scope="col">Model and tier</th>
              <Column title="Price" unit="× standard" />
              <Column title="Floor" unit="tok/s" />
              <Column title="Seats" unit="wanted / ready" />
              <Column title="Waiting" unit="calls" />
              <Column title="Calls" unit="per second" />
              <Column title="Refused" unit="calls" />
              <Column title="Floors kept" unit="of how many" />
              <Column title="First token" unit="p50 / p95" />
              <Column title="Speed p50" unit="tok/s" />
              <Column title="Output" unit="tok/s" />
              <Column title="Prompt" unit="tok/s" />
            </tr>
          </thead>
          <tbody>
            {live.tiers.map((row) => (
              <Row key={JSON.stringify([row.model, row.tier])} row={row} seen={seen} />
            ))}
          </tbody>
        </Table>
      )}
    </Section>
  );
}

export function Column({ title, unit }: { title: string; unit?: string }) {
  return (
    <th scope="col" class="number">
      {title}
      {unit && <span class="unit"> {unit}</span>}
    </th>
  );
}

function Row({ row, seen }: { row: TierRow; seen: Observations }) {
  const { calls, prompt, output, refused, kept, missed, firstToken, speed } = seen.figuresOf(row);
  const short = row.wanted - row.ready;
  return (
    <tr>
      <th scope="row">
        <Name text={row.model} />
        <TierName tier={row.tier} />
      </th>
      <td class="number">
        <Figure value={row.price_multiple === null ? null : String(row.price_multiple)} unit="×" />
      </td>
      <td class="number">
        <Figure value={row.floor_tps === null ? null : rate(row.floor_tps)} />
        {row.target_tps !== null && <span class="under">usually {rate(row.target_tps)}</span>}
      </td>
      <td class="number">
        {count(row.wanted)} / {count(row.ready)}
        {short > 0 && <span class="under is-problem">short of {count(short)}</span>}
      </td>
      <td class={`number ${row.held > 0 ? "is-more" : ""}`}>{count(row.held)}</td>
      <td class="number">
        <Figure value={calls === null ? null : rate(calls)} />
      </td>
      <td class={`number ${refused > 0 ? "is-more" : ""}`}>{count(refused)}</td>
      <td class="number">
        <Kept row={row} kept={kept} missed={missed} />
      </td>
      <td class="number">
        {firstToken ? (
          <>
            <Time estimate={firstToken.p50} />
            <span class="unit"> / </span>
            <Time estimate={firstToken.p95} />
          </>
        ) : (
          <Figure value={null} />
        )}
      </td>
      <td class="number">
        <Figure value={speed && `${speed.isAbove ? "> " : ""}${rate(speed.value)}`} />
      </td>
      <td class="number">
        <Figure value={output === null ? null : rate(output)} />
      </td>
      <td class="number">
        <Figure value={prompt === null ? null : rate(prompt)} />
      </td>
    </tr>
  );
}

function Kept({ row, kept, missed }: { row: TierRow; kept: number; missed: number }) {
  if (row.floor_tps === null) return <Figure value={null} />;
  const [recent, all] = [kept + missed, row.kept + row.missed];
  return (
    <>
      {recent > 0 ? `${share(kept, recent)} of ${largeCount(recent)}` : <Figure value={null} />}
      {all > 0 && (
        <span class="under">
          in all {share(row.kept, all)} of {largeCount(all)}
        </span>
      )}
    </>
  );
}
