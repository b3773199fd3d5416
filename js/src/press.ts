/** Time after which a button without an answer can be pressed again. The stop or message may be lost. */
export const PATIENCE_MS = 10_000;

/**
 * Listen for intended presses. A button may change under the pointer, such as from "Stop" to "Stop now".
 * So the second half of a double click and a repeated key are ignored.
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
