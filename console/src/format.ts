// Figures as text, each with its unit where the unit depends on the size. The same in every locale, as the words are.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";

export function count(value: number): string {
  return whole.format(value);
}

/** Counters that have grown large: 12,345 but 1.2M. */
export function largeCount(value: number): string {
  return value < 1e6 ? whole.format(value) : short.format(value);
}

/** `1 call`, `2 calls`. */
export function several(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Of something per second. */
export function rate(value: number): string {
  return value !== 0 && value < 9.95 ? oneDigit.format(value) : whole.format(value);
}

export function duration(seconds: number): string {
  if (seconds < 0.0995) return `${seconds < 0.00995 ? oneDigit.format(seconds * 1e3) : whole.format(seconds * 1e3)} ms`;
  if (seconds < 0.9995) return `${whole.format(seconds * 1e3)} ms`;
  if (seconds < 59.5) return `${seconds < 9.95 ? oneDigit.format(seconds) : whole.format(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${oneDigit.format(seconds / 3600)} h`;
}

/** A length of time in which something was counted. */
export function span(seconds: number): string {
  return seconds < 59.5 ? `${whole.format(Math.max(1, seconds))} s` : duration(seconds);
}

/** Rounded down, so that 100 % means all. */
export function share(part: number, all: number): string {
  const percent = (100 * part) / all;
  const digits = percent > 99 && part !== all ? 2 : 1;
  const factor = 10 ** digits;
  return `${(Math.floor(percent * factor + 1e-9) / factor).toFixed(part === all || part === 0 ? 0 : digits)} %`;
}

export function percent(fraction: number): string {
  return `${(100 * fraction).toFixed(1)} %`;
}

/** Millionths of the owner's currency, with as many decimals as the largest of the amounts beside it leaves room for. */
export function money(micro: number, largest: number = micro): string {
  const size = Math.abs(largest) / 1e6;
  const digits = size >= 100 ? 2 : size >= 1 ? 4 : 6;
  return new Intl.NumberFormat("en-US", {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
    signDisplay: "negative",
  }).format(micro / 1e6);
}

/** The time of day, here. */
export function clock(unixSeconds: number): string {
  const time = new Date(unixSeconds * 1e3);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}
