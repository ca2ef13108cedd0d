// How often each target was wrong in the last eval, and how far auto models are trusted now.

import { Figure, isNotKept, Name, Section, Standing, Table } from "./common";
import type { AutoModel, MistakeRow, Mistakes } from "./contract";
import { count, duration, money, NONE, percent, several, share } from "./format";
import { visible } from "./names";
import type { Polled } from "./polling";
import { Column } from "./tiers";

export function MistakesSection({ mistakes, auto }: { mistakes: Polled<Mistakes>; auto: AutoModel[] }) {
  const data = isNotKept(mistakes) ? null : mistakes.data;
  return (
    <Section
      id="mistakes"
      title="Mistakes"
      note={data && `Counted on ${visible(data.tasks)}, ${dayAndTime(data.at)}. Ranges are 95 % intervals.`}
    >
      <Standing polled={mistakes} />
      {data && data.rows.length > 0 && <MistakesTable rows={data.rows} isClear={data.is_clear} />}
      <h3>Auto models</h3>
      {auto.length === 0 ? <p class="empty">There is no auto model.</p> : <AutoTable rows={auto} />}
    </Section>
  );
}

/** Of an ISO time in UTC. */
function dayAndTime(iso: string): string {
  return `${visible(iso.slice(0, 16)).replace("T", " ")} UTC`;
}

function MistakesTable({ rows, isClear }: { rows: MistakeRow[]; isClear: boolean }) {
  const lowest = Math.floor(Math.min(...rows.map((row) => row.right_low)) * 20) / 20;
  return (
    <Table caption="Mistakes by target">
      <thead>
        <tr>
          <th scope="col">Target</th>
          <Column title="Tasks" />
          <th scope="col">
            Right<span class="unit"> {percent(lowest)} to 100 %</span>
          </th>
          <Column title="Right" unit="of tasks" />
          <Column title="Excess mistakes" unit="of calls" />
          <Column title="Answer" />
          <Column title="Time to a right answer" />
          <Column title="Cost of a right answer" />
          <th scope="col">Recommended</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.target}>
            <th scope="row">
              <Name text={row.target} />
            </th>
            <td class="number">{count(row.tasks)}</td>
            <td>
              <Interval row={row} from={lowest} />
            </td>
            <td class="number">
              {percent(row.right)}
              <span class="under">
                {percent(row.right_low)} to {percent(row.right_high)}
              </span>
            </td>
            <td class="number">
              <Figure value={row.excess === null ? null : percent(row.excess)} />
              {row.excess_low !== null && row.excess_high !== null && (
                <span class="under">
                  {percent(row.excess_low)} to {percent(row.excess_high)}
                </span>
              )}
            </td>
            <td class="number">
              <Figure value={row.answer_s === null ? null : duration(row.answer_s)} />
            </td>
            <td class="number">
              <Figure value={row.time_to_right_s === null ? null : duration(row.time_to_right_s)} />
            </td>
            <td class="number">
              <Figure value={row.cost_per_right_micro === null ? null : money(row.cost_per_right_micro)} />
            </td>
            <td class="words-cell">{row.is_recommended && (isClear ? "yes: its lead is clear" : "yes, but its lead is not clear")}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

/** The interval on the scale that all rows share. */
function Interval({ row, from }: { row: MistakeRow; from: number }) {
  const x = (value: number) => 4 + (132 * (value - from)) / Math.max(1e-9, 1 - from);
  return (
    <svg class="interval" viewBox="0 0 140 16" aria-hidden="true">
      <line class="grid" x1="4" x2="136" y1="8" y2="8" />
      <line class="range" x1={x(row.right_low)} x2={x(row.right_high)} y1="8" y2="8" />
      <circle class="point" cx={x(row.right)} cy="8" r="4" />
    </svg>
  );
}

function AutoTable({ rows }: { rows: AutoModel[] }) {
  return (
    <Table caption="Auto models">
      <thead>
        <tr>
          <th scope="col">Model</th>
          <th scope="col">Gate</th>
          <Column title="Student" unit="calls" />
          <Column title="Full model" unit="calls" />
          <Column title="Audits waiting" unit="calls" />
          <th scope="col">Verdicts of audits</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => {
          const all = row.student + row.full;
          const verdicts = Object.entries(row.audits).map(([verdict, times]) => `${visible(verdict)} ${count(times)}`);
          return (
            <tr key={row.model}>
              <th scope="row">
                <Name text={row.model} />
              </th>
              <td>{row.is_open ? "open" : <span class="is-problem">closed: the full model serves all</span>}</td>
              <td class="number">
                {count(row.student)}
                {all > 0 && <span class="under">{share(row.student, all)}</span>}
              </td>
              <td class="number">
                {count(row.full)}
                {all > 0 && <span class="under">{share(row.full, all)}</span>}
              </td>
              <td class="number">{count(row.audits_waiting)}</td>
              <td>
                {verdicts.join(", ") || NONE}
                {verdicts.length > 0 && (
                  <span class="unit"> of {several(Object.values(row.audits).reduce((sum, one) => sum + one, 0), "audit")}</span>
                )}
              </td>
            </tr>
          );
        })}
      </tbody>
    </Table>
  );
}
