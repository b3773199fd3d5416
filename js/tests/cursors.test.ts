import { YNotebook } from "@jupyter/ydoc";
import { describe, expect, it } from "vitest";
import { createRelativePositionFromTypeIndex } from "yjs";
import { otherIn } from "../src/cursors";

describe("the cursor of another user", () => {
  const notebook = YNotebook.create() as YNotebook;
  for (const id of ["a", "b"]) notebook.insertCell(0, { id, cell_type: "code", source: "", metadata: {} });
  const cell = (id: string) => notebook.cells.find((each) => each.id === id)!;
  /** Tell this page where another user's cursor is, as a page of jupyter-collaboration does. */
  const put = (state: object | null) => {
    notebook.awareness!.states.clear();
    if (state) notebook.awareness!.states.set(7, JSON.parse(JSON.stringify(state)) as { [key: string]: unknown });
  };
  const cursor = (id: string) => {
    const head = createRelativePositionFromTypeIndex((cell(id) as unknown as { ysource: never }).ysource, 0);
    return [{ anchor: head, head, primary: true, empty: true }];
  };

  it("is found in its cell only", () => {
    put({ user: { display_name: "Kim", name: "kim" }, cursors: cursor("b") });
    expect(otherIn(notebook, cell("b"))).toEqual({ name: "Kim" });
    expect(otherIn(notebook, cell("a"))).toBeUndefined();
  });

  it("has a bounded name", () => {
    put({ user: { name: "k".repeat(1000) }, cursors: cursor("b") });
    expect(otherIn(notebook, cell("b"))?.name).toHaveLength(80);
  });

  it("may be missing or invalid", () => {
    for (const cursors of [null, undefined, [], [null], [{}], [{ head: null }], [{ head: { type: null } }], "x"]) {
      put({ user: { name: "kim" }, cursors });
      expect(otherIn(notebook, cell("b"))).toBeUndefined();
    }
  });

  it("is not this user's own", () => {
    put(null);
    notebook.awareness!.setLocalState({ user: { name: "me" }, cursors: cursor("b") });
    expect(otherIn(notebook, cell("b"))).toBeUndefined();
  });
});
