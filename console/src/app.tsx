// The whole page: who may look, what is asked how often, and the sections.

import { useEffect, useRef, useState } from "preact/hooks";
import { needsAttention } from "./attention";
import { Name, Sparkline } from "./common";
import type { Cell, Keys, Live, Mistakes, Money, Offers } from "./contract";
import { clock, count, duration, rate, several, share, span } from "./format";
import { Frontiers } from "./frontier";
import { KeysSection } from "./keys";
import { MistakesSection } from "./mistakes";
import { MoneyToday } from "./money";
import { shorten, visible } from "./names";
import { doAllTell, Observations, streamsOf } from "./observations";
import { useOfNow, usePageIsVisible, usePolled, type Polled } from "./polling";
import { Replicas } from "./replicas";
import { adminKey, keepAdminKey, takeKeyFromAddress } from "./session";
import { SignIn } from "./sign-in";
import { Tiers } from "./tiers";
import { TryIt } from "./try";

const LIVE_MS = 500;
const BOOKS_MS = 10_000;
const SELDOM_MS = 30_000;
const OLD_S = 2;

const SECTIONS = [
  ["replicas", "Replicas"],
  ["tiers", "Tiers"],
  ["frontier", "Frontier"],
  ["money", "Money"],
  ["mistakes", "Mistakes"],
  ["keys", "Keys"],
  ["try", "Try it"],
];

export function App() {
  const [key, setKey] = useState(() => takeKeyFromAddress() ?? adminKey());
  const [refusal, setRefusal] = useState<string | null>(null);
  useEffect(() => keepAdminKey(key), [key]);
  useEffect(() => {
    // A link with a key that is opened in this tab.
    const look = (): void => {
      const taken = takeKeyFromAddress();
      if (taken) setKey(taken);
    };
    window.addEventListener("hashchange", look);
    return () => window.removeEventListener("hashchange", look);
  }, []);
  const leave = (why: string | null): void => {
    setRefusal(why);
    setKey(null);
  };
  if (key === null)
    return (
      <SignIn
        refusal={refusal}
        enter={(entered) => {
          setRefusal(null);
          setKey(entered);
        }}
      />
    );
  return <Console key={key} adminKey={key} leave={leave} />;
}

interface ConsoleProps {
  adminKey: string;
  leave: (why: string | null) => void;
}

function Console({ adminKey: key, leave }: ConsoleProps) {
  const isVisible = usePageIsVisible();
  const [isPaused, setPaused] = useState(false);
  const isRunning = isVisible && !isPaused;
  const polled = usePolled<Live>("/admin/live", key, LIVE_MS, isRunning);
  const offers = usePolled<Offers>("/admin/offers", key, SELDOM_MS, isRunning);
  const money = usePolled<Money>("/admin/money", key, BOOKS_MS, isRunning);
  const keys = usePolled<Keys>("/admin/keys", key, BOOKS_MS, isRunning);
  const mistakes = usePolled<Mistakes>("/admin/mistakes", key, SELDOM_MS, isRunning);
  const seen = useRef(new Observations()).current;
  if (polled.data && polled.data !== seen.latest) seen.take(polled.data);
  const freshAt = useFreshness(polled);
  const live = polled.data;
  const isOld = useOfNow((now) => freshAt > 0 && now - freshAt > OLD_S);

  useEffect(() => {
    if (polled.problem?.isRefusedKey) leave(polled.problem.message);
  }, [polled.problem]);
  const attention = needsAttention(seen);
  useEffect(() => {
    document.title = attention.length > 0 ? `(${attention.length}) Headway console` : "Headway console";
  }, [attention.length]);

  return (
    <>
      <a class="skip" href="#main">
        Skip to the figures
      </a>
      <header class="top">
        <h1>Headway</h1>
        {live && <Running live={live} seen={seen} />}
        <Freshness polled={polled} freshAt={freshAt} isOld={isOld} isPaused={isPaused} />
        <span class="buttons">
          <button type="button" aria-pressed={isPaused} onClick={() => setPaused(!isPaused)}>
            Pause
          </button>
          <button type="button" onClick={() => leave(null)}>
            Forget key
          </button>
        </span>
        <nav aria-label="Sections">
          {SECTIONS.map(([id, title]) => (
            <a key={id} href={`#${id}`}>
              {title}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" tabIndex={-1}>
        {live ? (
          <>
            <div class={isOld ? "is-old" : ""}>
              <Glance live={live} seen={seen} />
              <Attention sentences={attention} />
              <Replicas live={live} seen={seen} />
              <Tiers live={live} seen={seen} />
              <Frontiers offers={offers} live={live} />
            </div>
            <MoneyToday money={money} />
            <MistakesSection mistakes={mistakes} auto={live.auto} />
            <KeysSection keys={keys} />
            <TryIt offers={offers} />
          </>
        ) : (
          <p class="empty">{polled.problem ? polled.problem.message : "Loading …"}</p>
        )}
      </main>
      <footer>
        Headway {live && visible(live.version)}. <a href="/console/licences.txt">Licences</a> of what this page contains.
      </footer>
    </>
  );
}

/** When the gateway's figures last changed, here: its clock and this one may differ. */
function useFreshness(polled: Polled<Live>): number {
  const last = useRef({ at: 0, here: 0 });
  if (polled.data && polled.data.at !== last.current.at) last.current = { at: polled.data.at, here: polled.at };
  return last.current.here;
}

interface FreshnessProps {
  polled: Polled<Live>;
  freshAt: number;
  isOld: boolean;
  isPaused: boolean;
}

function Freshness({ polled, freshAt, isOld, isPaused }: FreshnessProps) {
  const age = useOfNow((now) => span(now - freshAt));
  const from = freshAt > 0 && `Figures from ${clock(freshAt)}`;
  const why = polled.problem && polled.data ? ` ${polled.problem.message}` : "";
  return (
    <p class={`freshness ${isOld ? "is-problem" : ""}`}>
      <span role="status">
        {isPaused ? "Paused. " : isOld ? "Old. " : polled.data ? "Live" : "Connecting"}
        {isOld && from}
        {isOld && why && `.${why}`}
      </span>
      {isOld && <span class="unit"> ({age} old)</span>}
    </p>
  );
}

function Running({ live, seen }: { live: Live; seen: Observations }) {
  const lag = seen.lagP99();
  return (
    <dl class="running">
      <div>
        <dt>Version</dt>
        <dd>{visible(live.version)}</dd>
      </div>
      {live.cell ? (
        <CellFigures cell={live.cell} />
      ) : (
        <div>
          <dt>Cell</dt>
          <dd>none, one process</dd>
        </div>
      )}
      <div>
        <dt>Loop lag p99, last minute</dt>
        <dd>{lag ? `${lag.isAbove ? "> " : ""}${duration(lag.value)}` : "not known yet"}</dd>
      </div>
      <div>
        <dt>WebSockets</dt>
        <dd>{count(live.sockets)} open</dd>
      </div>
    </dl>
  );
}

function CellFigures({ cell }: { cell: Cell }) {
  const connected = cell.relays.filter((relay) => relay.beat_s !== null);
  const calls = cell.relays.reduce((sum, relay) => sum + relay.calls, 0);
  return (
    <>
      <div>
        <dt>Cell</dt>
        <dd>
          {visible(cell.role)}, epoch {count(cell.epoch)}
          {cell.lag_s !== null && `, lag ${duration(cell.lag_s)}`}
        </dd>
      </div>
      <div>
        <dt>Relays</dt>
        <dd>
          <details>
            <summary>
              {count(connected.length)} of {count(cell.relays.length)} connected, {several(calls, "call")}
            </summary>
            <ul class="relays">
              {cell.relays.map((relay) => (
                <li key={relay.name}>
                  <Name text={relay.name} label={shorten(visible(relay.name), 24)} />: {several(relay.calls, "call")},{" "}
                  {relay.beat_s === null ? (
                    <span class="is-problem">not connected</span>
                  ) : (
                    `last beat ${duration(relay.beat_s)} ago`
                  )}
                </li>
              ))}
            </ul>
          </details>
        </dd>
      </div>
    </>
  );
}

/** What matters most, in large figures. */
function Glance({ live, seen }: { live: Live; seen: Observations }) {
  const now = seen.trail.at(-1);
  const figures = live.tiers.map((row) => seen.figuresOf(row));
  const of = (name: "refused" | "kept" | "missed") => figures.reduce((sum, one) => sum + one[name], 0);
  const [kept, promised] = [of("kept"), of("kept") + of("missed")];
  const open = live.replicas.filter((one) => one.state === "open");
  const seats = live.replicas.reduce((sum, one) => sum + one.seats, 0);
  const streams = live.replicas.reduce((sum, one) => sum + streamsOf(one), 0);
  const minutes = `last ${span(seen.seconds)}`;
  const listed = live.more_replicas > 0 ? " listed" : "";
  return (
    <ul class="glance" aria-label="At a glance">
      <Tile
        title="Output"
        value={now?.tokens === null || now === undefined ? "–" : rate(now.tokens)}
        unit="tok/s"
        note={doAllTell(live) ? undefined : "counted as calls end"}
        trail={seen.trail.map((one) => one.tokens)}
      />
      <Tile title="Streams" value={count(streams)} unit={`of ${several(seats, "seat")}${listed}`} trail={seen.trail.map((one) => one.streams)} />
      <Tile title="Waiting" value={count(now?.held ?? 0)} unit={now?.held === 1 ? "call" : "calls"} trail={seen.trail.map((one) => one.held)} />
      <Tile title="Refused" value={count(of("refused"))} unit="calls" note={minutes} />
      <Tile
        title="Floors kept"
        value={promised > 0 ? share(kept, promised) : "–"}
        unit={promised > 0 ? `of ${count(promised)}` : "none ended"}
        note={minutes}
      />
      <Tile
        title="Replicas open"
        value={`${count(open.length)} of ${count(live.replicas.length)}`}
        unit={listed.trim()}
        note={`${count(open.filter((one) => one.is_light).length)} light`}
      />
    </ul>
  );
}

interface TileProps {
  title: string;
  value: string;
  unit: string;
  note?: string | undefined;
  trail?: (number | null)[];
}

function Tile({ title, value, unit, note, trail }: TileProps) {
  return (
    <li>
      <span class="tile-title">{title}</span>
      <span class="tile-value">{value}</span>
      <span class="unit">{unit}</span>
      {note && <span class="tile-note">{note}</span>}
      {trail && <Sparkline values={trail} label={`${title}, last two minutes`} />}
    </li>
  );
}

function Attention({ sentences }: { sentences: string[] }) {
  const [isWhole, setWhole] = useState(false);
  const shown = isWhole ? sentences : sentences.slice(0, 6);
  return (
    <section class={`attention ${sentences.length > 0 ? "has-some" : ""}`} aria-labelledby="attention-title">
      <h2 id="attention-title">
        <span role="status">
          {sentences.length > 0 ? `${several(sentences.length, "thing needs", "things need")} attention` : "Nothing needs attention"}
        </span>
      </h2>
      {sentences.length > 0 && (
        <ul>
          {shown.map((sentence) => (
            <li key={sentence}>{sentence}</li>
          ))}
        </ul>
      )}
      {sentences.length > 6 && (
        <button type="button" aria-expanded={isWhole} onClick={() => setWhole(!isWhole)}>
          {isWhole ? "Fewer" : `${count(sentences.length - 6)} more`}
        </button>
      )}
    </section>
  );
}
