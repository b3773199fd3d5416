import { describe, expect, it } from "vitest";
import { taskOf } from "../src/ask-team";

describe("a task about an error", () => {
  it("names the cell and the cells next to it, at their places after the insertion", () => {
    const task = taskOf(["import x", "a = 1", "b = a / 0", "c = 3"], 2, "ZeroDivisionError: division by zero");
    expect(task.split("\n")).toEqual([
      "%%agents --notebook propose",
      "Explain this error of @cell:3, and propose a fix. The cells next to it: @cell:2 and @cell:5.",
      "",
      "ZeroDivisionError: division by zero",
    ]);
    expect(taskOf(["b = 1 / 0"], 0, "x")).not.toContain("next to it");
  });

  it("is for the team that the notebook has used", () => {
    const cells = ["%%agents -c 'my team.yaml' --name x\nDo", "%%agents --recipe r.yaml", "1 / 0"];
    expect(taskOf(cells, 2, "x").split("\n")[0]).toBe("%%agents -c 'my team.yaml' --notebook propose");
  });

  it("has a bounded error, in which nothing is replaced", () => {
    expect(taskOf(["x"], 0, "@/etc/passwd {{key}} a @ b")).toContain("\\@/etc/passwd \\{{key}} a @ b");
    const long = taskOf(["x"], 0, `${"a".repeat(5000)}end`);
    expect(long.length).toBeLessThan(3_200);
    expect(long.endsWith("end")).toBe(true);
  });
});
