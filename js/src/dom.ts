/** DOM helpers that change only what differs, which preserves focus, selection and screen reader output. */

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  ...children: Node[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** Set the text, and hide the node if the text is empty. */
export function setTextOrHide(node: HTMLElement, text: string): void {
  setText(node, text);
  setHidden(node, text === "");
}

export function setHidden(node: HTMLElement, hidden: boolean): void {
  if (node.hidden !== hidden) node.hidden = hidden;
}

export function setAttr(node: HTMLElement, name: string, value: string | null): void {
  if (node.getAttribute(name) === value) return;
  if (value === null) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

export function setClass(node: HTMLElement, className: string): void {
  if (node.className !== className) node.className = className;
}

/** Show one element per text. */
export function setLines(list: HTMLElement, texts: readonly string[], tag: "p" | "span"): void {
  while (list.children.length > texts.length) list.lastElementChild?.remove();
  texts.forEach((text, i) => {
    const line = (list.children[i] as HTMLElement | undefined) ?? list.appendChild(make(tag));
    setAttr(line, "dir", "auto");
    setText(line, text);
  });
  setHidden(list, texts.length === 0);
}
