// Small parts that several sections show.

import { Component, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { clock, duration, NONE } from "./format";
import type { Estimate } from "./histogram";
import { visible } from "./names";
import type { Polled } from "./polling";

/** A name that somebody chose: isolated from its neighbours, on one line, whole in its tooltip. */
export function Name({ text, label }: { text: string; label?: string }) {
  return (
    <bdi class="name" title={visible(text)}>
      {label ?? visible(text)}
    </bdi>
  );
}

/** A figure that may not be known. */
export function Figure({ value, unit }: { value: string | null; unit?: string }) {
  if (value === null) return <Unknown />;
  return (
    <>
      {value}
      {unit && <span class="unit"> {unit}</span>}
    </>
  );
}

export function Unknown() {
  return (
    <span class="unknown">
      <span aria-hidden="true">{NONE}</span>
      <span class="heard">none</span>
    </span>
  );
}

export function Time({ estimate }: { estimate: Estimate | null | undefined }) {
  if (!estimate) return <Unknown />;
  return (
    <>
      {estimate.isAbove && "> "}
      {duration(estimate.value)}
    </>
  );
}

export function TierName({ tier }: { tier: string }) {
  return (
    <span class={`tier tier-${tier}`}>
      <svg class="swatch" viewBox="0 0 10 10" aria-hidden="true">
        <rect x="1" y="1" width="8" height="8" rx="2" />
      </svg>
      {visible(tier)}
    </span>
  );
}

interface SectionProps {
  id: string;
  title: string;
  note?: ComponentChildren;
  aside?: ComponentChildren;
  children: ComponentChildren;
}

export function Section({ id, title, note, aside, children }: SectionProps) {
  return (
    <section id={id} aria-labelledby={`${id}-title`}>
      <div class="section-head">
        <h2 id={`${id}-title`}>{title}</h2>
        {note && <p class="note">{note}</p>}
        {aside && <div class="aside">{aside}</div>}
      </div>
      <Fence>{children}</Fence>
    </section>
  );
}

/** If one section fails, the others still help whoever is on call. */
class Fence extends Component<{ children: ComponentChildren }, { message: string | null }> {
  state: { message: string | null } = { message: null };

  componentDidCatch(error: unknown): void {
    console.error(error);
    this.setState({ message: String(error) });
  }

  render() {
    if (this.state.message === null) return this.props.children;
    return <p class="empty">This section failed ({this.state.message}). Load the page again.</p>;
  }
}

/** A table that scrolls by itself where the window is narrow. */
export function Table({ caption, children }: { caption: string; children: ComponentChildren }) {
  return (
    <div class="scroll" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <caption class="heard">{caption}</caption>
        {children}
      </table>
    </div>
  );
}

/** The gateway has no such figures, and says why. */
export function isNotKept(polled: Polled<unknown>): boolean {
  return polled.problem?.isNotKept ?? false;
}

/** What a section shows instead of, or above, its figures while there are none or only old ones. */
export function Standing({ polled }: { polled: Polled<unknown> }) {
  if (isNotKept(polled)) return <p class="empty">{polled.problem?.message}</p>;
  if (polled.problem)
    return (
      <p class="empty is-problem">
        {polled.problem.message} {polled.data !== null && `These figures are from ${clock(polled.at)}.`}
      </p>
    );
  return polled.data === null ? <p class="empty">Loading …</p> : null;
}

/** The width that an element has on the screen. */
export function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!element.current) return;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.round(entry?.contentRect.width ?? 0)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

interface SparklineProps {
  values: (number | null)[];
  label: string;
}

/** The last values, from zero to the highest. */
export function Sparkline({ values, label }: SparklineProps) {
  const known = values.filter((one) => one !== null);
  const highest = Math.max(1e-9, ...known);
  const x = (index: number) => 1 + (118 * index) / Math.max(1, values.length - 1);
  const y = (value: number) => 27 - (24 * value) / highest;
  const points = values.map((value, index) => (value === null ? "" : `${x(index).toFixed(1)},${y(value).toFixed(1)}`));
  return (
    <svg class="sparkline" viewBox="0 0 120 28" preserveAspectRatio="none" role="img" aria-label={label}>
      {known.length > 1 && <polyline points={points.filter(Boolean).join(" ")} vector-effect="non-scaling-stroke" />}
    </svg>
  );
}
