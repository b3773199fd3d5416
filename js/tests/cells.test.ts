import { expect, test } from "vitest";
import { Cells } from "../src/cells";

/** A notebook in which one cell is being removed: it is still listed, but has no model any more. */
function tracker(output: Node) {
  const removed = { model: null, node: { contains: (node: Node) => node === output } };
  const panel = { node: { contains: () => true }, content: { widgets: [removed] }, context: { path: "a.ipynb" } };
  return { find: (is: (panel: unknown) => boolean) => (is(panel) ? panel : undefined), forEach: (call: (panel: unknown) => void) => call(panel) };
}

test("a cell that is being removed is no place of an output", () => {
  const output = document.createElement("p");
  const cells = new Cells(tracker(output) as never, (path) => path);
  expect(cells.of(output)).toBeUndefined();
  expect(cells.find("s/turn_1", false)).toBeUndefined();
  expect(cells.ofSession("s/turn_1")).toBeUndefined();
});
