// What the tiers have earned and cost today.

import { isNotKept, Name, Section, Standing, Table, TierName } from "./common";
import type { Money, MoneyRow } from "./contract";
import { count, duration, largeCount, money, NONE } from "./format";
import type { Polled } from "./polling";
import { Column } from "./tiers";

export function MoneyToday({ money: polled }: { money: Polled<Money> }) {
  const data = isNotKept(polled) ? null : polled.data;
  return (
    <Section id="money" title="Money today" note={data && `${data.day} (UTC). Amounts are in the currency of headway.toml.`}>
      <Standing polled={polled} />
      {data && data.tiers.length === 0 && <p class="empty">No call was billed today.</p>}
      {data && data.tiers.length > 0 && <MoneyTable rows={data.tiers} />}
    </Section>
  );
}

interface Sums {
  calls: number;
  prompt: number;
  output: number;
  seatUs: number;
  revenue: number;
  refunded: number;
  cost: number | null;
}

function sums(rows: MoneyRow[]): Sums {
  const of = (read: (row: MoneyRow) => number) => rows.reduce((all, row) => all + read(row), 0);
  return {
    calls: of((row) => row.calls),
    prompt: of((row) => row.prompt_tokens),
    output: of((row) => row.output_tokens),
    seatUs: of((row) => row.seat_us),
    revenue: of((row) => row.revenue_micro),
    refunded: of((row) => row.refunded_micro),
    cost: rows.some((row) => row.cost_micro === null) ? null : of((row) => row.cost_micro ?? 0),
  };
}

function MoneyTable({ rows }: { rows: MoneyRow[] }) {
  const all = sums(rows);
  const largest = Math.max(all.revenue, all.cost ?? 0);
  return (
    <Table caption="Money today by model and tier">
      <thead>
        <tr>
          <th scope="col">Model and tier</th>
          <Column title="Calls" />
          <Column title="Prompt" unit="tokens" />
          <Column title="Output" unit="tokens" />
          <Column title="Seat-time" />
          <Column title="Revenue" />
          <Column title="Refunded" />
          <Column title="Cost" />
          <Column title="Margin" />
          <Column title="Margin" unit="% of revenue" />
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={JSON.stringify([row.model, row.tier])}>
            <th scope="row">
              <Name text={row.model} />
              <TierName tier={row.tier} />
            </th>
            <Amounts of={sums([row])} largest={largest} />
          </tr>
        ))}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">All tiers</th>
          <Amounts of={all} largest={largest} />
        </tr>
      </tfoot>
    </Table>
  );
}

function Amounts({ of, largest }: { of: Sums; largest: number }) {
  const net = of.revenue + of.refunded;
  const margin = of.cost === null ? null : net - of.cost;
  return (
    <>
      <td class="number">{count(of.calls)}</td>
      <td class="number">{largeCount(of.prompt)}</td>
      <td class="number">{largeCount(of.output)}</td>
      <td class="number">{duration(of.seatUs / 1e6)}</td>
      <td class="number">{money(of.revenue, largest)}</td>
      <td class="number">{money(of.refunded, largest)}</td>
      {margin === null || of.cost === null ? (
        <td class="number note" colSpan={3}>
          set replica_hour to see it
        </td>
      ) : (
        <>
          <td class="number">{money(of.cost, largest)}</td>
          <td class={`number ${margin < 0 ? "is-problem" : ""}`}>{money(margin, largest)}</td>
          <td class={`number ${margin < 0 ? "is-problem" : ""}`}>{net > 0 ? `${((100 * margin) / net).toFixed(1)} %` : NONE}</td>
        </>
      )}
    </>
  );
}
