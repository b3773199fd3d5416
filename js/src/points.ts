/** Keyboard navigation between the checkpoints of a timeline: Tab reaches one, arrow keys move in time. */

const POINT = "data-point";

type Drawn = SVGElement | HTMLElement;

/** The checkpoint of an element, as "turn:event", or "". */
export function pointOf(el: Element | null): string {
  return el?.getAttribute(POINT) ?? "";
}

/** Make the checkpoints of all timelines in an element accessible by keyboard. */
export function enableKeyboard(el: HTMLElement): void {
  for (const picture of el.querySelectorAll<SVGElement>("svg[role=img]")) {
    const points = inTime(picture);
    if (points.length === 0) continue;
    picture.setAttribute("role", "group"); // screen readers ignore the content of an image
    picture.setAttribute("data-lm-suppress-shortcuts", ""); // arrow keys of JupyterLab move to other cells
    picture.addEventListener("keydown", (event) => press(points, event));
    for (const point of points) {
      point.setAttribute("role", "button");
      point.tabIndex = -1;
    }
    points.at(-1)!.tabIndex = 0;
  }
}

/** Focus a checkpoint, or the next one if it is not drawn any longer. */
export function focusPoint(el: HTMLElement, wanted: string): void {
  const points = inTime(el);
  focus(points, points.find((point) => compare(pointOf(point), wanted) >= 0) ?? points.at(-1));
}

function inTime(el: Element): Drawn[] {
  return [...el.querySelectorAll<Drawn>(`[${POINT}]`)].sort((a, b) => compare(pointOf(a), pointOf(b)));
}

function compare(a: string, b: string): number {
  const [[turn = 0, event = 0], [turn2 = 0, event2 = 0]] = [a.split(":").map(Number), b.split(":").map(Number)];
  return turn - turn2 || event - event2;
}

function press(points: readonly Drawn[], event: KeyboardEvent): void {
  const at = points.indexOf(event.target as Drawn);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const last = points.length - 1;
  const steps: Record<string, number> = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: last };
  const to = steps[event.key];
  if (to !== undefined) focus(points, points[Math.max(0, Math.min(last, to))]);
  else if (event.key !== "Enter" && event.key !== " ") return;
  else if (!event.repeat) points[at]?.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  event.preventDefault();
  event.stopPropagation();
}

function focus(points: readonly Drawn[], point: Drawn | undefined): void {
  for (const each of points) each.tabIndex = each === point ? 0 : -1;
  point?.focus();
}
