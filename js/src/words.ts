/** Times and prices in words. */

const STEPS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", 86_400],
  ["hour", 3600],
  ["minute", 60],
];
const FORMAT = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });

/** Say how long ago a moment was, such as "5 min. ago"; "" when it is not known. */
export function ago(at: number | null | undefined, now = Date.now()): string {
  if (!at) return "";
  const seconds = Math.max(0, now / 1000 - at);
  const [unit, length] = STEPS.find(([, each]) => seconds >= each) ?? ["", 1];
  return unit ? FORMAT.format(-Math.floor(seconds / length), unit) : "just now";
}

/** Write a price; "" when it is unknown, or nothing was paid. */
export function dollars(cost: number | null | undefined): string {
  if (!cost) return "";
  return cost < 0.0005 ? "<$0.001" : `$${cost.toFixed(3)}`;
}
