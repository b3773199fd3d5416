/** Finds whose cursor is in a cell: this user's, or that of another user with jupyter-collaboration. */

import type { ISharedCell, YNotebook } from "@jupyter/ydoc";
import type { NotebookPanel } from "@jupyterlab/notebook";

/** The user whose cursor is in a cell. */
export interface CursorOwner {
  /** The name of another user, or "" for this user. The name is untrusted. */
  readonly name: string;
}

/** What a page of jupyter-collaboration tells the others about its user. */
interface UserState {
  readonly user?: { readonly display_name?: unknown; readonly name?: unknown };
  readonly cursors?: readonly ({ readonly head?: { readonly type?: ItemId | null } | null } | null)[] | null;
}

/** The id of an item of a Yjs document. */
interface ItemId {
  readonly client: number;
  readonly clock: number;
}

const MAX_NAME = 80;

/** Return whose cursor is in a cell, or undefined. A cursor stays in a cell until its user clicks in another one. */
export function cursorIn(panel: NotebookPanel, id: string): CursorOwner | undefined {
  const cell = panel.content.widgets.find(({ model }) => model?.id === id);
  if (!cell) return undefined;
  if (cell.editor?.hasFocus()) return { name: "" };
  return otherIn(panel.content.model!.sharedModel as YNotebook, cell.model.sharedModel);
}

/** Return the other user whose cursor is in a cell, or undefined. */
export function otherIn(notebook: YNotebook, cell: ISharedCell): CursorOwner | undefined {
  const { awareness } = notebook;
  const text = (cell as { readonly ysource?: { readonly _item?: { readonly id: ItemId } | null } }).ysource?._item?.id;
  if (!awareness || !text) return undefined;
  for (const [client, state] of awareness.getStates() as Map<number, UserState>) {
    if (client === awareness.clientID || !Array.isArray(state?.cursors)) continue;
    const isIn = state.cursors.some((each) => each?.head?.type?.client === text.client && each.head.type.clock === text.clock);
    if (isIn) return { name: String(state.user?.display_name || state.user?.name || "?").slice(0, MAX_NAME) };
  }
  return undefined;
}
