// Asks for a page again and again while somebody looks.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, problemFrom, type Problem } from "./gateway";

export interface Polled<Answer> {
  data: Answer | null;
  at: number; // when the data came, unix time in seconds
  problem: Problem | null; // why there is nothing newer
}

const LONGEST_WAIT_MS = 5000;
const NOT_KEPT_MS = 60_000; // what this gateway does not have, it gets only with another configuration

/** `everyMs`: from one request to the next. Fails more slowly, and goes on. */
export function usePolled<Answer>(path: string, key: string, everyMs: number, isRunning: boolean): Polled<Answer> {
  const [polled, setPolled] = useState<Polled<Answer>>({ data: null, at: 0, problem: null });
  const failures = useRef(0);
  useEffect(() => {
    if (!isRunning) return;
    const left = new AbortController();
    let timer = 0;
    const poll = async (): Promise<void> => {
      const began = Date.now();
      let wait = everyMs;
      try {
        const data = await ask<Answer>(path, key, left.signal);
        failures.current = 0;
        setPolled({ data, at: Date.now() / 1e3, problem: null });
      } catch (error) {
        if (left.signal.aborted) return;
        const problem = problemFrom(error);
        failures.current += 1;
        const slower = Math.min(LONGEST_WAIT_MS, 500 * 2 ** failures.current);
        wait = problem.isNotKept ? NOT_KEPT_MS : Math.max(everyMs, slower, 1e3 * problem.retryAfterS);
        setPolled((before) => ({ ...before, problem }));
      }
      timer = window.setTimeout(() => void poll(), Math.max(0, began + wait - Date.now()));
    };
    void poll();
    return () => {
      left.abort();
      window.clearTimeout(timer);
    };
  }, [path, key, everyMs, isRunning]);
  return polled;
}

export function usePageIsVisible(): boolean {
  const [isVisible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const look = (): void => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return isVisible;
}

/** What `read` makes of the time, looked at twice a second. Draws again only when it has changed. */
export function useOfNow<Value>(read: (now: number) => Value): Value {
  const [value, setValue] = useState(() => read(Date.now() / 1e3));
  const newest = useRef(read);
  newest.current = read;
  useEffect(() => {
    const timer = window.setInterval(() => setValue(newest.current(Date.now() / 1e3)), 500);
    return () => window.clearInterval(timer);
  }, []);
  return value;
}
