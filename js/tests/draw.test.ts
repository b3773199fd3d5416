import { beforeEach, describe, expect, test } from "vitest";
import type { PanelState } from "../src/panel-types";
import { RUNNING, STOPPED, STOPPING, agent, show, visibleText } from "./mock";

beforeEach(() => document.body.replaceChildren());

describe("the live view", () => {
  const statuses: [PanelState, string, string | null][] = [
    [RUNNING, "chip run", "Stop"],
    [STOPPING, "chip ing", "Stop now · 27 s"],
    [STOPPED, "chip cut", null],
    [{ ...STOPPED, status: "failed", chip: "failed" }, "chip err", null],
    [{ ...STOPPED, status: "complete", chip: "complete" }, "chip ok", null],
  ];
  test.each(statuses)("draws the status $status with its text, mark and button", (state, mark, label) => {
    const { q, button } = show(state);
    expect(q("header .chip").textContent).toBe(state.chip);
    expect(q("header .chip").className).toBe(mark);
    expect(button.hidden ? null : button.textContent).toBe(label);
  });

  test("shows every part of the state", () => {
    const { el } = show({ ...STOPPING, notices: ["saving failed: disk full"] });
    const text = visibleText(el);
    for (const part of ["Compare caches", "Round: 3/∞", "Elapsed: 234s / 1800s (13%)", "$0.041"]) {
      expect(text).toContain(part);
    }
    for (const part of ["1 call in flight: critic", "saving failed: disk full", "3 files", "critic", "1 token"]) {
      expect(text).toContain(part);
    }
  });

  test("draws before Python has set the state", () => {
    const { q, button } = show({});
    expect(button.hidden).toBe(true);
    expect(q(".rows").hidden).toBe(true);
  });

  test("hides the parts that have no text", () => {
    const { el, model, q } = show({ ...RUNNING, in_flight: "1 call in flight", notices: ["a note"] });
    model.update({ ...RUNNING, cost: "", in_flight: "", notices: [], footer: [] });
    expect(q(".flight").hidden).toBe(true);
    expect(q(".notices").hidden).toBe(true);
    expect(q("footer").hidden).toBe(true);
    expect(visibleText(el)).not.toContain("$");
  });

  test.each([
    [0.126, "13", "12.6%"],
    [-1, "0", "0.0%"],
    [7, "100", "100.0%"],
  ])("gives the fraction %d to the progress bar as %s", (fraction, now, width) => {
    const { q } = show({ ...RUNNING, fraction });
    expect(q("[role=progressbar]").getAttribute("aria-valuenow")).toBe(now);
    expect(q("[role=progressbar]").getAttribute("aria-valuemax")).toBe("100");
    expect(q("[role=progressbar]").getAttribute("aria-label")).toBe("Time used");
    expect(q(".bar i").style.width).toBe(width);
  });

  test("shows in the chip's colour that all agents wait", () => {
    const chip = "waiting for quota until 03:00:00";
    expect(show({ ...RUNNING, chip, waits: true }).q("header .chip").className).toBe("chip ing");
    expect(show({ ...RUNNING, chip }).q("header .chip").className).toBe("chip run");
  });

  test("shows HTML in any text as text", () => {
    const evil = "<img src=x onerror=alert(1)><script>1</script>";
    const { el } = show({
      ...RUNNING,
      task: evil,
      chip: evil,
      round: evil,
      elapsed: evil,
      cost: evil,
      in_flight: evil,
      agents: [agent(evil, { model: evil, chip: evil, says: evil, numbers: evil })],
      button: { label: evil, now: false, title: evil },
      notices: [evil],
      footer: [evil],
    });
    expect(el.querySelector("img, script")).toBeNull();
    expect(visibleText(el).split(evil)).toHaveLength(14 + 1);
  });
});

describe("the rows of agents", () => {
  const ids = (el: HTMLElement) => [...el.querySelectorAll("tbody .id")].map((node) => node.textContent);

  test("are the same DOM nodes after an update", () => {
    const { el, model } = show();
    const before = [...el.querySelectorAll("tr, tr *")];
    model.update({ ...RUNNING, agents: [agent("researcher", { says: "new" }), agent("critic", { tone: "ok" })] });
    expect([...el.querySelectorAll("tr, tr *")]).toEqual(before);
    expect(el.querySelector(".says")?.textContent).toBe("new");
  });

  test("follow agents that come, go and change places", () => {
    const { el, model } = show();
    const critic = el.querySelectorAll("tbody tr")[1];
    model.update({ ...RUNNING, agents: ["critic", "builder", "judge"].map((id) => agent(id)) });
    expect(ids(el)).toEqual(["critic", "builder", "judge"]);
    expect(el.querySelector("tbody tr")).toBe(critic);
    model.update({ ...RUNNING, agents: ["judge", "critic"].map((id) => agent(id)) });
    expect(ids(el)).toEqual(["judge", "critic"]);
    expect(el.querySelectorAll("tbody tr")[1]).toBe(critic);
  });

  test("of called agents are indented", () => {
    const called = agent("ada/critic#1", { depth: 1, name: "critic#1" });
    const { q } = show({ ...RUNNING, agents: [agent("ada", { depth: 0, name: "ada" }), called] });
    const row = q("tbody").querySelectorAll<HTMLElement>("tr")[1];
    expect(row?.style.getPropertyValue("--nba-depth")).toBe("1");
    expect(q(".rows").getAttribute("aria-label")).toBe("Agents");
  });

  test("have the agent's name as row header", () => {
    const { q } = show();
    expect(q("tbody th").getAttribute("scope")).toBe("row");
    expect(q("tbody th .id").textContent).toBe("researcher");
  });

  test("show a caret while the agent writes", () => {
    const { model, q } = show({ ...RUNNING, agents: [agent("a", { writing: true })] });
    expect(q(".caret").hidden).toBe(false);
    model.update({ ...RUNNING, agents: [agent("a", { writing: false })] });
    expect(q(".caret").hidden).toBe(true);
  });

  test.each([
    ["being written, left to right", "abc", true, "says tail", "rtl"],
    ["being written, right to left", "«שלום", true, "says tail", "ltr"],
    ["cut at the start", "…abc", false, "says tail", "rtl"],
    ["finished, left to right", "abc", false, "says", "ltr"],
    ["finished, right to left", "سلام", false, "says", "rtl"],
  ])("keep the right end of %s text visible", (_case, says, writing, className, dir) => {
    const { q } = show({ ...RUNNING, agents: [agent("a", { says, writing })] });
    expect(q(".says").className).toBe(className);
    expect(q(".says").dir).toBe(dir);
  });

  test("can be scrolled with the keyboard when there are many", () => {
    const { model, q } = show();
    expect(q(".rows").hasAttribute("tabindex")).toBe(false);
    model.update({ ...RUNNING, agents: Array.from({ length: 100 }, (_, i) => agent(`a${i}`)) });
    expect(q(".rows").tabIndex).toBe(0);
  });
});

describe("focus and announcements", () => {
  test("the focus stays on the button over 50 updates", () => {
    const { button, model } = show();
    button.focus();
    for (let i = 0; i < 50; i++) {
      const state = i < 25 ? RUNNING : STOPPING;
      model.update({ ...state, elapsed: `Elapsed: ${i}s`, agents: [agent("critic", { says: `word ${i}` })] });
      expect(document.activeElement).toBe(button);
    }
  });

  test("the focus moves to the panel when the button disappears", () => {
    const { button, model, q } = show();
    button.focus();
    model.update(STOPPED);
    expect(document.activeElement).toBe(q(".nba"));
  });

  test("the status is announced when it changes, and only then", async () => {
    const { model, q } = show();
    const region = q("[role=status]");
    expect(region.getAttribute("aria-live")).toBe("polite");
    const changes: string[] = [];
    const watch = { childList: true, characterData: true, subtree: true };
    const observer = new MutationObserver(() => changes.push(region.textContent ?? ""));
    observer.observe(region, watch);
    for (const elapsed of ["1s", "2s", "3s"]) {
      model.update({ ...RUNNING, elapsed });
      await Promise.resolve();
    }
    expect(changes).toEqual([]);
    model.update(STOPPING);
    await expect.poll(() => changes).toEqual([STOPPING.chip]);
    observer.disconnect();
  });

  test("the countdown is not part of the button's name", () => {
    const { button } = show(STOPPING);
    expect(button.getAttribute("aria-label")).toBe("Stop now");
    expect(button.title).toBe("Cuts the call");
  });
});

describe("the card", () => {
  const card = "<article>The answer</article><details><summary>How</summary></details>";

  test("replaces the live view", () => {
    const { el, model, q } = show();
    model.update({ ...STOPPED, card });
    expect(q(".card article").textContent).toBe("The answer");
    expect(q(".live").classList).toContain("nba-sr");
    // The status stays for screen readers, which announce the end.
    expect(visibleText(q(".live")).trim()).toBe("stopped");
    expect(el.querySelector(".card")?.hasAttribute("hidden")).toBe(false);
  });

  test("is shown immediately in a page opened after the end", () => {
    const { q } = show({ ...STOPPED, card });
    expect(q(".card article").textContent).toBe("The answer");
    expect(q(".rows").hidden).toBe(true);
  });

  test("keeps its DOM and open details during updates", () => {
    const { model, q } = show({ ...STOPPED, card });
    const article = q(".card article");
    model.update({ ...STOPPED, card });
    expect(q(".card article")).toBe(article);
  });
});
