/** Times and prices as text. */

const STEPS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];
const FORMAT = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

/** Return how long ago a time was, such as "5 min. ago", or "" if unknown. */
export function ago(at: number | null | undefined, now = Date.now()): string {
  if (!at) return "";
  const seconds = Math.max(0, now / 1000 - at);
  const [unit, length] = STEPS.find(([, each]) => seconds >= each) ?? ["", 1];
  return unit ? FORMAT.format(-Math.floor(seconds / length), unit) : "just now";
}

/** Return a price as text, or "" if it is unknown or zero. */
export function dollars(cost: number | null | undefined): string {
  if (!cost) return "";
  return cost < 0.0005 ? "<$0.001" : `$${cost.toFixed(3)}`;
}
