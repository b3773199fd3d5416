import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { GateQuestion, PanelState } from "../src/panel-types";
import { MockKernel, RUNNING, STOPPING, agent, show } from "./mock";

beforeEach(() => document.body.replaceChildren());
afterEach(() => vi.restoreAllMocks());

const GATE: GateQuestion = { id: "gather", name: "gather", asks: "stage", prompt: "Use it?\nReally?", countdown: "58 s, then denied" };
const ASKING: PanelState = { ...RUNNING, chip: "awaiting approval", gates: [GATE] };

function open(state: unknown = ASKING, manager?: { kernel?: unknown }) {
  const shown = show(state, manager);
  const find = (selector: string) => shown.q(`.gate ${selector}`);
  return { ...shown, find, input: find("input") as HTMLInputElement, approve: find(".approve"), deny: find(".deny") };
}

describe("a gate", () => {
  test("shows its question as text, its time and its name", () => {
    const evil = "<img src=x onerror=alert(1)>";
    const { el, find, q } = open({ ...ASKING, gates: [{ ...GATE, prompt: evil, name: evil, countdown: evil }] });
    expect(find(".prompt").textContent).toBe(evil);
    expect(find("small").textContent).toBe(evil);
    expect(el.querySelector("img")).toBeNull();
    const label = find("strong");
    expect(label.textContent).toBe(`Approve “${evil}”?`);
    expect(q(".gate").getAttribute("aria-labelledby")).toBe(label.id);
    expect(q("header .chip").className).toBe("chip ing");
  });

  test.each([
    ["approve", "Approving…"],
    ["deny", "Denying…"],
  ])("is decided by %s on both channels with one id and the message", (name, label) => {
    const kernel = new MockKernel();
    const { find, input, model } = open(ASKING, { kernel });
    input.value = " use mmap ";
    find(`.${name}`).click();
    const sent = { run: "run-1", gate: "gather", message: "use mmap", id: expect.stringMatching(/^[0-9a-f-]{32,36}$/) };
    expect(model.sent(name)).toEqual([{ type: name, ...sent }]);
    const [message] = kernel.sendControlMessage.mock.calls[0] ?? [];
    expect(message.header.msg_type).toBe(`nb_agents_${name}_request`);
    expect({ type: name, ...message.content }).toEqual(model.sent(name)[0]);
    expect(find(`.${name}`).textContent).toBe(label);
  });

  test("is decided once, until the time limit is over", () => {
    vi.useFakeTimers();
    const { approve, deny, model } = open();
    approve.click();
    approve.click();
    deny.click();
    expect(model.sent("approve", "deny")).toHaveLength(1);
    expect(deny.getAttribute("aria-disabled")).toBe("true");
    vi.advanceTimersByTime(10_000);
    expect(approve.textContent).toBe("Approve");
    deny.click();
    expect(model.sent("approve", "deny")).toHaveLength(2);
    vi.useRealTimers();
  });

  test("is not decided by Enter in the box, which moves to the button", () => {
    const { approve, input, model } = open();
    const event = new KeyboardEvent("keydown", { key: "Enter", shiftKey: true, bubbles: true, cancelable: true });
    const outside = vi.fn();
    document.body.addEventListener("keydown", outside);
    input.dispatchEvent(event);
    expect(model.sent("approve", "deny")).toEqual([]);
    expect(outside).not.toHaveBeenCalled();
    expect(document.activeElement).toBe(approve);
  });

  test("keeps its text and the focus while the panel is drawn", () => {
    const { input, model, find } = open();
    input.focus();
    input.value = "half a se";
    model.update({ ...ASKING, gates: [{ ...GATE, countdown: "57 s, then denied" }] });
    expect(find("small").textContent).toBe("57 s, then denied");
    expect(input.value).toBe("half a se");
    expect(document.activeElement).toBe(input);
  });

  test.each([
    ["is decided", RUNNING],
    ["is stopped", STOPPING],
  ])("disappears when it %s, and the focus stays on the panel", (_what, state) => {
    const { approve, el, model, q } = open();
    approve.focus();
    model.update(state);
    expect(el.querySelector(".gate")).toBeNull();
    expect(document.activeElement).toBe(q(".nba"));
  });

  test("disappears with the kernel, and has no effect in an unmounted panel", () => {
    const kernel = new MockKernel();
    const { approve, el, life, model } = open(ASKING, { kernel });
    life.abort();
    approve.click();
    expect(model.sent("approve", "deny")).toEqual([]);
    const other = open(ASKING, { kernel });
    kernel.disposed.emit(kernel);
    expect(other.el.querySelector(".gate")).toBeNull();
    expect(el.querySelector(".gate")).not.toBeNull();
  });

  test("of several is decided separately, the oldest first", () => {
    const { el, model } = open({ ...ASKING, gates: [GATE, { ...GATE, id: "late", name: "late" }] });
    const names = [...el.querySelectorAll(".gate strong")].map((node) => node.textContent);
    expect(names).toEqual(["Approve “gather”?", "Approve “late”?"]);
    (el.querySelectorAll(".gate .deny")[1] as HTMLElement).click();
    expect(model.sent("approve", "deny")).toMatchObject([{ type: "deny", gate: "late" }]);
    model.update({ ...ASKING, gates: [{ ...GATE, id: "late", name: "late" }] });
    expect(el.querySelectorAll(".gate")).toHaveLength(1);
    expect(el.querySelector(".gate .deny")?.textContent).toBe("Denying…");
  });
});

describe("the labels match the kind of question", () => {
  const asking = (asks: GateQuestion["asks"]): PanelState => ({ ...ASKING, gates: [{ ...GATE, asks }] });

  test.each([
    ["stage", "Approve “gather”?", "Message for the next steps", "Approve", "Deny", /The recipe stops/],
    ["approval", "Approve gather?", "Why", "Approve", "Deny", /does not run/],
    ["text", "A question for you", "Your answer", "Answer", "Refuse", /no answer/],
    ["budget", "Raise the budget?", "Another amount", "Raise", "Stop", /The run stops/],
  ] as const)("%s", (asks, title, label, yes, no, refusal) => {
    const { approve, deny, find, input } = open(asking(asks));
    expect(find("strong").textContent).toBe(title);
    expect(input.getAttribute("aria-label")).toBe(label);
    expect([approve.textContent, deny.textContent]).toEqual([yes, no]);
    expect(deny.title).toMatch(refusal);
  });

  test("an empty text is no answer, and a refusal needs no text", () => {
    const { approve, deny, input, model } = open(asking("text"));
    input.value = "  ";
    approve.click();
    expect(model.sent("approve", "deny")).toEqual([]);
    expect(document.activeElement).toBe(input);
    input.value = "Lyon";
    approve.click();
    expect(model.sent("approve", "deny")).toMatchObject([{ type: "approve", message: "Lyon" }]);
    expect(approve.textContent).toBe("Answering…");
    const other = open(asking("text"));
    other.deny.click();
    expect(other.model.sent("approve", "deny")).toMatchObject([{ type: "deny", message: "" }]);
    expect(deny.textContent).toBe("Refuse");
  });
});

describe("the rows of a recipe", () => {
  const unit = (id: string, more: object = {}) => agent(id, { name: id.split("/").pop() ?? id, depth: id.split("/").length - 1, pending: false, ...more });

  test("have their last name, are indented, and show their prompt", () => {
    const { q } = show({ ...RUNNING, agents: [unit("a"), unit("a/b", { title: "Draft <it>" })] });
    const rows = [...q("tbody").querySelectorAll<HTMLElement>("tr")];
    expect(rows.map((row) => row.querySelector(".id")?.textContent)).toEqual(["a", "b"]);
    expect(rows.map((row) => row.style.getPropertyValue("--nba-depth"))).toEqual(["0", "1"]);
    expect(rows[1]?.querySelector("th")?.title).toBe("Draft <it>");
    expect(rows[1]?.querySelector("th")?.getAttribute("aria-description")).toBe("level 2");
    expect(q(".rows").getAttribute("aria-label")).toBe("Steps");
  });

  test("mark the current unit and pending ones", () => {
    const { q, model } = show({ ...RUNNING, agents: [unit("a", { current: true }), unit("b", { pending: true, chip: "" })] });
    expect(q("tbody tr[aria-current=step] .id").textContent).toBe("a");
    expect(q("tbody tr.pending .id").textContent).toBe("b");
    model.update({ ...RUNNING, agents: [unit("a"), unit("b", { current: true })] });
    expect(q("tbody tr[aria-current=step] .id").textContent).toBe("b");
    expect(q("tbody").querySelector(".pending")).toBeNull();
  });

  test("scroll to the current unit, unless the user is reading", () => {
    const { q, model } = show({ ...RUNNING, agents: [unit("a", { current: true }), unit("b")] });
    const list = q(".rows");
    Object.defineProperty(list, "clientHeight", { value: 100 });
    const [, second] = q("tbody").querySelectorAll("tr");
    Object.defineProperties(second as object, { offsetTop: { value: 300 }, offsetHeight: { value: 30 } });
    const next: PanelState = { ...RUNNING, agents: [unit("a"), unit("b", { current: true })] };
    list.tabIndex = 0;
    list.focus();
    model.update(next);
    expect(list.scrollTop).toBe(0);
    list.blur();
    model.update({ ...RUNNING, agents: [unit("a", { current: true }), unit("b")] });
    model.update(next);
    expect(list.scrollTop).toBeGreaterThan(200);
  });
});
