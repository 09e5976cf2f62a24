// Series of the last hour for charts, asked for every five seconds, and kept between two answers.

import { ask } from "./store.js";

const EVERY_MS = 5000;

/** Return a function that keeps series up to date; its ``data`` is the last answer. */
export function recent(query) {
  let next = 0;
  const follow = async () => {
    if (performance.now() < next) return;
    next = performance.now() + EVERY_MS;
    const { data } = await ask(`recent?${new URLSearchParams(query)}`);
    follow.data = data;
  };
  follow.data = { t: [], series: {} };
  follow.at = (name) => follow.data.series[name] || [];
  return follow;
}
