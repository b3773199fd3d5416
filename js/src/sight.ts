/** Leaves alone what nobody sees: a panel that is scrolled away, or in a tab behind another one. */

/**
 * Make a function that draws a panel while it is in sight, and as soon as it comes into sight.
 *
 * @param announce Called in the place of `draw` while it is not: changes what a screen reader reads.
 */
export function makeInSight(el: HTMLElement, life: AbortSignal, draw: () => void, announce: () => void): () => void {
  let isInSight = true;
  let isBehind = false;
  const redraw = (): void => {
    isBehind = !isInSight;
    if (isInSight) draw();
    else announce();
  };
  const observer = new IntersectionObserver((entries) => {
    isInSight = entries.at(-1)?.isIntersecting ?? true;
    if (isInSight && isBehind) redraw();
  });
  observer.observe(el);
  life.addEventListener("abort", () => observer.disconnect());
  return redraw;
}
