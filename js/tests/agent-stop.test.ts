import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { AgentRow } from "../src/panel-types";
import { MockKernel, RUNNING, STOPPED, agent, show } from "./mock";

const team = (now: boolean | null) => ({
  ...RUNNING,
  agents: [agent("ada", { stop: now === null ? null : { now } }), agent("ben")],
});

beforeEach(() => document.body.replaceChildren());
afterEach(() => {
  vi.restoreAllMocks();
  vi.useRealTimers();
});

describe("the Stop button of an agent", () => {
  test("sends the agent's stop on both channels", () => {
    const kernel = new MockKernel();
    const { model, q } = show(team(false), { kernel });
    const button = q("button.one");
    expect(button.textContent).toBe("Stop");
    expect(button.getAttribute("aria-label")).toBe("Stop ada");
    button.click();
    expect(model.stops()).toEqual([{ type: "stop", run: "run-1", agent: "ada", immediate: false }]);
    const [message] = kernel.sendControlMessage.mock.calls[0] ?? [];
    expect(message.header.msg_type).toBe("nb_agents_stop_request");
    expect(message.content).toEqual({ run: "run-1", agent: "ada", immediate: false });
  });

  test("shows the press immediately, keeps the focus, and is sent once", () => {
    const { model, q } = show(team(false));
    const button = q("button.one");
    button.focus();
    button.click();
    button.click();
    expect(button.textContent).toBe("Stopping…");
    expect(button.getAttribute("aria-disabled")).toBe("true");
    expect(document.activeElement).toBe(button);
    expect(model.stops()).toHaveLength(1);
  });

  test("requests an immediate stop the second time, and disappears then", () => {
    const { model, q, el } = show(team(false));
    const button = q("button.one");
    button.click();
    model.update(team(true));
    expect(button.textContent).toBe("Stop now");
    expect(button.getAttribute("aria-label")).toBe("Stop ada now");
    button.focus();
    button.click();
    expect(model.stops()[1]).toEqual({ type: "stop", run: "run-1", agent: "ada", immediate: true });
    expect(button.textContent).toBe("Stopping now…");
    model.update(team(null));
    expect(button.hidden).toBe(true);
    expect(document.activeElement).toBe(el.querySelector(".nba"));
  });

  test("can be pressed again after ten seconds without an answer", () => {
    vi.useFakeTimers();
    const { model, q } = show(team(false));
    q("button.one").click();
    vi.advanceTimersByTime(10_000);
    q("button.one").click();
    expect(model.stops()).toHaveLength(2);
  });

  test("is on the row of an agent called by a recipe's step, labelled with its name", () => {
    const unit = (id: string, more: Partial<AgentRow>) => agent(id, { name: id.split("/").pop() ?? id, pending: false, stop: null, ...more });
    const step = unit("gather/draft", { depth: 1 });
    const critic = unit("gather/draft/critic#1", { depth: 2, stop: { now: false } });
    const { model, el, q } = show({ ...RUNNING, agents: [unit("gather", { depth: 0 }), step, critic] });
    const rows = [...q("tbody").querySelectorAll<HTMLElement>("tr")];
    expect(rows.map((row) => row.querySelector<HTMLElement>("button.one")?.hidden)).toEqual([true, true, false]);
    expect(rows[2]?.style.getPropertyValue("--nba-depth")).toBe("2");
    expect(rows[2]?.querySelector(".id")?.textContent).toBe("critic#1");
    const button = el.querySelector<HTMLButtonElement>('[aria-label="Stop gather/draft/critic#1"]');
    button?.click();
    expect(model.stops()).toEqual([{ type: "stop", run: "run-1", agent: "gather/draft/critic#1", immediate: false }]);
    model.update({ ...RUNNING, agents: [step, { ...critic, stop: null, chip: "stopped", tone: "cut" }] });
    expect(button?.hidden).toBe(true);
  });

  test("is missing for other agents, and without a kernel", () => {
    const kernel = new MockKernel();
    const { model, el } = show(team(false), { kernel });
    const shown = () => [...el.querySelectorAll<HTMLElement>("button.one")].filter((b) => !b.hidden);
    expect(shown()).toHaveLength(1);
    kernel.statusChanged.emit(kernel, "dead");
    expect(shown()).toHaveLength(0);
    model.update(STOPPED);
    expect(shown()).toHaveLength(0);
  });
});
