// The try-it pane: one prompt at two tiers at once.

import { useEffect, useRef, useState } from "preact/hooks";
import { Figure, Section, Standing, TierName } from "./common";
import type { Offer, Offers } from "./contract";
import { count, duration, money, rate, several } from "./format";
import { liveSpeed, run, type LaneState, type Proof } from "./lane";
import { shorten, visible } from "./names";
import type { Polled } from "./polling";
import { callKey, keepCallKey } from "./session";

const PROMPT = "Explain in a few sentences why a batch of fewer streams makes each of them faster.";
const NOTHING = ""; // instead of a second tier

export function TryIt({ offers }: { offers: Polled<Offers> }) {
  const models = offers.data?.models.filter((one) => one.kind === "chat") ?? [];
  return (
    <Section
      id="try"
      title="Try it"
      note="Sends a prompt at two tiers at once, as any client would, and shows what each answer proves about itself. The calls are billed to the key."
    >
      {models.length > 0 ? (
        <Pane models={models} />
      ) : offers.data ? (
        <p class="empty">No chat model is offered.</p>
      ) : (
        <Standing polled={offers} />
      )}
    </Section>
  );
}

/** The fastest tier beside the usual one. */
function usualTiers(tiers: string[]): [string, string] {
  const first = tiers.includes("standard") ? "standard" : (tiers[0] ?? "standard");
  const second = ["fast", "ultrafast"].find((one) => tiers.includes(one)) ?? tiers.find((one) => one !== first);
  return [first, second ?? NOTHING];
}

function Pane({ models }: { models: Offer[] }) {
  const [name, setName] = useState<string | null>(null);
  const model = models.find((one) => one.model === name) ?? (models[0] as Offer);
  const usual = usualTiers(model.tiers);
  const [chosen, setChosen] = useState<[string | null, string | null]>([null, null]);
  const tiers = usual.map((tier, index) => {
    const one = chosen[index];
    return one === NOTHING || (one && model.tiers.includes(one)) ? one : tier;
  }) as [string, string];
  const [prompt, setPrompt] = useState(PROMPT);
  const [tokens, setTokens] = useState(256);
  const [key, setKey] = useState(callKey());
  const [lanes, setLanes] = useState<[string, LaneState | null][]>([]);
  const leaving = useRef<AbortController | null>(null);
  useEffect(() => () => leaving.current?.abort(), []);
  const isRunning = lanes.some(([, lane]) => lane === null || lane.phase === "waiting" || lane.phase === "streaming");

  const send = (): void => {
    if (isRunning || !prompt.trim()) return;
    keepCallKey(key.trim());
    const controller = new AbortController();
    leaving.current = controller;
    const asked = tiers.filter((tier) => tier !== NOTHING);
    setLanes(asked.map((tier) => [tier, null]));
    asked.forEach((tier, index) => {
      const show = (lane: LaneState): void =>
        setLanes((before) => before.map((one, at) => (at === index ? [tier, lane] : one)));
      void run({ model: model.model, tier, prompt, tokens }, key.trim(), controller.signal, show);
    });
  };

  return (
    <>
      <form
        class="try-form"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
      >
        <label>
          Model
          <select value={model.model} onChange={(event) => setName(event.currentTarget.value)}>
            {models.map((one) => (
              <option key={one.model} value={one.model}>
                {shorten(visible(one.model), 60)}
              </option>
            ))}
          </select>
        </label>
        <TierChoice label="First tier" value={tiers[0]} tiers={model.tiers} choose={(tier) => setChosen([tier, chosen[1]])} />
        <TierChoice label="Second tier" value={tiers[1]} tiers={model.tiers} mayBeNone choose={(tier) => setChosen([chosen[0], tier])} />
        <label>
          Longest answer, tokens
          <input
            type="number"
            min={1}
            max={4096}
            required
            value={tokens}
            onInput={(event) => setTokens(event.currentTarget.valueAsNumber || 1)}
          />
        </label>
        <label>
          Key for calls
          <input
            type="password"
            autocomplete="off"
            placeholder="none"
            aria-describedby="try-key-note"
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        <label class="wide">
          Prompt
          <textarea
            rows={3}
            required
            value={prompt}
            onInput={(event) => setPrompt(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
              event.preventDefault();
              send();
            }}
          />
        </label>
        <p class="note wide" id="try-key-note">
          An admin key may not send calls. Leave the field empty if the gateway asks for no key. It is kept in this tab only.
          Ctrl-Enter sends.
        </p>
        <div class="wide buttons">
          <button class="primary" type="submit" disabled={isRunning}>
            Send
          </button>
          <button type="button" disabled={!isRunning} onClick={() => leaving.current?.abort()}>
            Stop
          </button>
        </div>
      </form>
      <div class="lanes">
        {lanes.map(([tier, lane], index) => (
          <Lane key={index} tier={tier} lane={lane} />
        ))}
      </div>
    </>
  );
}

interface TierChoiceProps {
  label: string;
  value: string;
  tiers: string[];
  mayBeNone?: boolean;
  choose: (tier: string) => void;
}

function TierChoice({ label, value, tiers, mayBeNone, choose }: TierChoiceProps) {
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {tiers.map((tier) => (
          <option key={tier} value={tier}>
            {visible(tier)}
          </option>
        ))}
        {mayBeNone && <option value={NOTHING}>none</option>}
      </select>
    </label>
  );
}

const PHASES: Record<LaneState["phase"], string> = {
  waiting: "waiting for the first token",
  streaming: "streaming",
  done: "done",
  stopped: "stopped",
  failed: "failed",
};

function Lane({ tier, lane }: { tier: string; lane: LaneState | null }) {
  const speed = lane && liveSpeed(lane);
  const first = lane && lane.firstToken !== null ? (lane.firstToken - lane.began) / 1e3 : null;
  return (
    <article class="lane" aria-label={`Answer at ${tier}`}>
      <h3>
        <TierName tier={tier} />
        <span class="note" role="status">
          {PHASES[lane?.phase ?? "waiting"]}
        </span>
      </h3>
      <p class="lane-speed">
        <strong>{speed === null ? "–" : rate(speed)}</strong> tok/s
        <span class="note">
          {several(lane?.tokens ?? 0, "token")}
          {first !== null && `, first after ${duration(first)}`}
          {lane?.tierServed && lane.tierServed !== tier && `, served as ${visible(lane.tierServed)}`}
        </span>
      </p>
      {lane?.problem && (
        <p class="is-problem" role="alert">
          {visible(lane.problem)}
        </p>
      )}
      {lane?.thought && <p class="thought">{lane.thought}</p>}
      {lane?.text && <Answer text={lane.text} label={`Text at ${tier}`} />}
      {lane?.finish === "length" && <p class="note">The answer has reached its longest length.</p>}
      {lane?.proof && <ProofTable proof={lane.proof} />}
    </article>
  );
}

/** Stays at its end while it grows, unless somebody has scrolled up. */
function Answer({ text, label }: { text: string; label: string }) {
  const element = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (isAtEnd.current) element.current?.scrollTo(0, element.current.scrollHeight);
  }, [text]);
  return (
    <div
      ref={element}
      class="answer"
      role="region"
      aria-label={label}
      tabIndex={0}
      onScroll={({ currentTarget: it }) => (isAtEnd.current = it.scrollHeight - it.scrollTop - it.clientHeight < 8)}
    >
      {text}
    </div>
  );
}

const number = (value: unknown): value is number => typeof value === "number";

function ProofTable({ proof }: { proof: Proof }) {
  const { tier_asked, tier_served, reason, tokens_per_second, floor_tokens_per_second, kept } = proof;
  const { answer_seconds, seat_seconds, billed_micro, refunded_micro, rung, escalated, served_by } = proof;
  const rows: [string, string | null][] = [
    ["Tier", tier_asked === tier_served ? text(tier_served) : `${text(tier_asked)}, served as ${text(tier_served)}`],
    ...optional("Reason", reason),
    ["Speed, measured", number(tokens_per_second) ? `${rate(tokens_per_second)} tok/s` : null],
    ["Floor", number(floor_tokens_per_second) ? `${rate(floor_tokens_per_second)} tok/s` : "none promised"],
    ["Floor kept", kept === null || kept === undefined ? null : kept ? "yes" : "no"],
    ["Whole answer", number(answer_seconds) ? duration(answer_seconds) : null],
    ["Seat-time", number(seat_seconds) ? duration(seat_seconds) : null],
    ["Price", number(billed_micro) ? `${money(billed_micro)}, in the currency of headway.toml` : "no ledger"],
    ...(number(refunded_micro) && refunded_micro !== 0 ? [["Refunded", money(refunded_micro)] as [string, string]] : []),
    ...optional("Rung", rung),
    ...optional("Escalated", escalated),
    ...optional("Served by", served_by),
    ...(proof.reader_was_slow ? [["Reader", "was slow: the speed is this page's"] as [string, string]] : []),
  ];
  return (
    <table class="proof">
      <caption>Proof</caption>
      <tbody>
        {rows.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td>
              <Figure value={value} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function text(value: unknown): string {
  return typeof value === "string" ? visible(value) : number(value) ? count(value) : String(value ?? "not said");
}

function optional(name: string, value: unknown): [string, string][] {
  return value === null || value === undefined || value === "" || value === false ? [] : [[name, text(value)]];
}
