// The keys, in this tab only, until it is closed.

const ADMIN = "headway.console.admin-key";
const CALLS = "headway.console.call-key";

export function adminKey(): string | null {
  return sessionStorage.getItem(ADMIN);
}

export function keepAdminKey(key: string | null): void {
  if (key === null) sessionStorage.removeItem(ADMIN);
  else sessionStorage.setItem(ADMIN, key);
}

export function callKey(): string {
  return sessionStorage.getItem(CALLS) ?? "";
}

export function keepCallKey(key: string): void {
  sessionStorage.setItem(CALLS, key);
}

/** The key of an address that ends in `#key=...`, which is removed from the address and from the history at once. */
export function takeKeyFromAddress(): string | null {
  const found = /^#key=(.+)$/.exec(location.hash);
  if (!found?.[1]) return null;
  history.replaceState(null, "", location.pathname);
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1]; // a key with a % of its own
  }
}
