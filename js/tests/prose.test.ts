import { expect, test, vi } from "vitest";
import { MARKED, kindOf } from "../src/prose";

vi.mock("@codemirror/state", () => ({}));
vi.mock("@codemirror/view", () => ({
  Decoration: { mark: () => ({}) },
  MatchDecorator: class {},
  ViewPlugin: { define: () => ({}) },
}));

test.each([
  ["%%agents", "task"],
  ["%%agents --wait -m openai:gpt-5-mini", "task"],
  ["%%agents --recipe review.yaml", "values"],
  ["%%agents -r review.yaml --wait", "values"],
  ["%%agentsx", ""],
  ["%agents list", ""],
  ["x = 1", ""],
])("a cell that starts with %s contains %s", (line, kind) => {
  expect(kindOf(line)).toBe(kind);
});

test("only variables and files of a task are marked", () => {
  const task = "Read @src/app.py and {{ notes }}, \\{{not}} me@example.org, @~/a/ now. {{1}}";
  expect(task.match(MARKED)).toEqual(["@src/app.py", "{{ notes }}", "@~/a/"]);
});
