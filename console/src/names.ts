// Names that others chose, as text that can be trusted to look like what it is.

// Characters that cannot be seen, or that change the order in which their neighbours are shown.
const UNSEEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/gu;

/** The name with every unseen character written as its code. */
export function visible(name: string): string {
  return name.replace(UNSEEN, (one) => `\\u{${(one.codePointAt(0) ?? 0).toString(16)}}`);
}

/** At most `length` characters: the begin and the end, which is where the names of a fleet differ. */
export function shorten(name: string, length: number): string {
  const characters = [...name];
  if (characters.length <= length) return name;
  const end = Math.ceil((length - 1) / 2);
  return `${characters.slice(0, length - 1 - end).join("")}…${characters.slice(-end).join("")}`;
}

/** A replica's URL without what all of them share. */
export function replicaLabel(name: string): string {
  return shorten(visible(name).replace(/^https?:\/\//, ""), 40);
}
