// The tenants' keys: what they spend, and what they may.

import { Figure, isNotKept, Name, Section, Standing, Table } from "./common";
import type { KeyRow, Keys } from "./contract";
import { count, money, several } from "./format";
import { visible } from "./names";
import type { Polled } from "./polling";
import { Column } from "./tiers";

export function KeysSection({ keys }: { keys: Polled<Keys> }) {
  const data = isNotKept(keys) ? null : keys.data;
  return (
    <Section id="keys" title="Keys" note={data && "Amounts are in the currency of headway.toml; days and months are UTC."}>
      <Standing polled={keys} />
      {data && data.keys.length === 0 && <p class="empty">There are no keys. <code>headway keys create</code> makes one.</p>}
      {data && data.keys.length > 0 && <KeysTable rows={data.keys} />}
      {data && data.more_keys > 0 && <p class="empty">{several(data.more_keys, "more key")} not listed.</p>}
    </Section>
  );
}

function KeysTable({ rows }: { rows: KeyRow[] }) {
  return (
    <Table caption="Keys with spend, budgets and limits">
      <thead>
        <tr>
          <th scope="col">Key</th>
          <Column title="Calls today" />
          <Column title="Spent today" unit="of its budget" />
          <Column title="Reserved this month" unit="of its budget" />
          <Column title="Limit" unit="calls per minute" />
          <Column title="Limit, fast" unit="calls per minute" />
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.id} class={row.is_revoked ? "is-revoked" : ""}>
            <th scope="row">
              <Name text={row.name} />
              <span class="under">
                {visible(row.id)}
                {row.is_revoked && ", revoked"}
              </span>
            </th>
            <td class="number">{count(row.calls_today)}</td>
            <td class="number">
              <Spent micro={row.spent_today_micro} budget={row.budget_day_micro} label="today" />
            </td>
            <td class="number">
              <Spent micro={row.reserved_month_micro} budget={row.budget_month_micro} label="this month" />
            </td>
            <td class="number">
              <Figure value={row.requests_per_minute === null ? "no limit" : count(row.requests_per_minute)} />
            </td>
            <td class="number">
              <Figure value={row.fast_requests_per_minute === null ? "no limit" : count(row.fast_requests_per_minute)} />
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

interface SpentProps {
  micro: number | null;
  budget: number | null;
  label: string;
}

function Spent({ micro, budget, label }: SpentProps) {
  if (micro === null)
    return (
      <>
        <Figure value={null} />
        <span class="under">no budget</span>
      </>
    );
  if (budget === null)
    return (
      <>
        {money(micro)}
        <span class="under">no budget</span>
      </>
    );
  const part = budget > 0 ? Math.min(1, micro / budget) : 1;
  const level = part >= 1 ? "is-full" : part >= 0.8 ? "is-high" : "";
  return (
    <>
      {money(micro, budget)} <span class="unit">of {money(budget)}</span>
      <svg
        class={`budget ${level}`}
        viewBox="0 0 100 6"
        preserveAspectRatio="none"
        role="img"
        aria-label={`${(100 * part).toFixed(0)} % of the budget spent ${label}`}
      >
        <rect class="budget-all" width="100" height="6" />
        <rect class="budget-spent" width={100 * part} height="6" />
      </svg>
      {part >= 1 && <span class="under is-problem">spent</span>}
    </>
  );
}
