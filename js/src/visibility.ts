/** Skips drawing of panels that are not visible: scrolled away, or in a hidden tab. */

/**
 * Create a function that draws a panel while it is visible, or as soon as it becomes visible.
 *
 * @param announce Called instead of `draw` while it is not visible, for screen readers.
 */
export function drawWhileVisible(el: HTMLElement, life: AbortSignal, draw: () => void, announce: () => void): () => void {
  let isVisible = true;
  let isStale = false;
  const redraw = (): void => {
    isStale = !isVisible;
    if (isVisible) draw();
    else announce();
  };
  const observer = new IntersectionObserver((entries) => {
    isVisible = entries.at(-1)?.isIntersecting ?? true;
    if (isVisible && isStale) redraw();
  });
  observer.observe(el);
  life.addEventListener("abort", () => observer.disconnect());
  return redraw;
}
