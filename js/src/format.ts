/** Times and prices as text. */

import { languageTag, trans } from "./text";

const STEPS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];

/** Return how long ago a time was, such as "5 min. ago", in the user's language, or "" if unknown. */
export function ago(at: number | null | undefined, now = Date.now()): string {
  if (!at) return "";
  const seconds = Math.max(0, now / 1000 - at);
  const [unit, length] = STEPS.find(([, each]) => seconds >= each) ?? ["", 1];
  return unit ? ages().format(-Math.floor(seconds / length), unit) : trans.__("just now");
}

const formats = new Map<string, Intl.RelativeTimeFormat>();

function ages(): Intl.RelativeTimeFormat {
  const language = languageTag();
  const format = formats.get(language) ?? new Intl.RelativeTimeFormat(language, { numeric: "always", style: "short" });
  formats.set(language, format);
  return format;
}

/** Return a price as text, or "" if it is unknown or zero. */
export function dollars(cost: number | null | undefined): string {
  if (!cost) return "";
  return cost < 0.0005 ? "<$0.001" : `$${cost.toFixed(3)}`;
}
