/** After this long without an answer a button can be pressed again: a stop may have been vetoed, a message lost. */
export const PATIENCE_MS = 10_000;

/**
 * Listen for presses that are meant. A button may turn into another under the pointer, as "Stop"
 * into "Stop now": neither the second half of a double click nor a key held down presses again.
 */
export function listen(button: HTMLButtonElement, life: AbortSignal, press: () => void): void {
  const onClick = (event: MouseEvent): void => {
    if (event.detail !== 2) press();
  };
  const onKeydown = (event: KeyboardEvent): void => {
    if (event.repeat && event.key === "Enter") event.preventDefault();
  };
  button.addEventListener("click", onClick, { signal: life });
  button.addEventListener("keydown", onKeydown, { signal: life });
}
