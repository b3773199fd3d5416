import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { MockKernel, RUNNING, STOPPED, STOPPING, show } from "./mock";

beforeEach(() => document.body.replaceChildren());
afterEach(() => vi.restoreAllMocks());

function open(state: unknown = RUNNING, manager?: { kernel?: unknown }) {
  const shown = show(state, manager);
  const input = shown.q(".say input") as HTMLInputElement;
  const press = (more: KeyboardEventInit = {}) => {
    const event = new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...more });
    input.dispatchEvent(event);
    return event;
  };
  return { ...shown, input, press, send: shown.q(".say button") };
}

const SENT = { run: "run-1", id: expect.stringMatching(/^[0-9a-f-]{32,36}$/), text: "In French" };

describe("a message in the box", () => {
  test.each(["Enter", "Send"])("is sent by %s on both channels with one id, and the box is cleared", (way) => {
    const kernel = new MockKernel();
    const { input, model, press, send } = open(RUNNING, { kernel });
    input.value = "  In French ";
    if (way === "Enter") expect(press().defaultPrevented).toBe(true);
    else send.click();
    expect(model.sent("say")).toEqual([{ type: "say", ...SENT }]);
    const [message] = kernel.sendControlMessage.mock.calls[0] ?? [];
    expect(message.header.msg_type).toBe("nb_agents_say_request");
    expect({ type: "say", ...message.content }).toEqual(model.sent("say")[0]);
    expect(input.value).toBe("");
    expect(document.activeElement).toBe(input);
  });

  test("is another message each time", () => {
    const { input, model, press } = open();
    for (const text of ["one", "one"]) {
      input.value = text;
      press();
    }
    const ids = model.sent("say").map((message) => (message as { id: string }).id);
    expect(new Set(ids).size).toBe(2);
  });

  test("is sent only by the widget message if the control channel throws", () => {
    vi.spyOn(console, "warn").mockReturnValue();
    const kernel = new MockKernel();
    kernel.sendControlMessage.mockImplementation(() => {
      throw new Error("Kernel is dead");
    });
    const { input, model, press } = open(RUNNING, { kernel });
    input.value = "In French";
    press();
    expect(model.sent("say")).toHaveLength(1);
  });

  test("is not sent if it is empty, nor by the Enter that ends a composition", () => {
    const { input, model, press } = open();
    input.value = "   ";
    press();
    input.value = "に";
    press({ isComposing: true });
    expect(model.sent("say")).toEqual([]);
    expect(input.value).toBe("に");
  });

  test("stays, with the focus, while the panel is drawn", () => {
    const { input, model } = open();
    input.focus();
    input.value = "half a se";
    model.update({ ...RUNNING, elapsed: "Elapsed: 235s" });
    expect(input.value).toBe("half a se");
    expect(document.activeElement).toBe(input);
  });

  test("keeps its keys from the notebook, and has a label and a maximum length", () => {
    const { input, q } = open();
    expect(q(".say").getAttribute("data-lm-suppress-shortcuts")).toBe("true");
    expect(input.getAttribute("aria-label")).toBe("Send a message to the agents");
    expect(input.maxLength).toBe(20_000);
  });

  test("has no effect in an unmounted panel", () => {
    const { input, life, model, press, send } = open();
    input.value = "late";
    life.abort();
    press();
    send.click();
    expect(model.sent("say")).toEqual([]);
  });
});

describe("the box", () => {
  test.each([
    ["stopping", STOPPING],
    ["stopped", STOPPED],
  ])("disappears when the run is %s, and the focus stays on the panel", (_status, state) => {
    const { input, model, q } = open();
    input.focus();
    model.update(state);
    expect(q(".say .box").hidden).toBe(true);
    expect(document.activeElement).toBe(q(".nba"));
  });

  test("disappears with the kernel", () => {
    const kernel = new MockKernel();
    const { q } = open(RUNNING, { kernel });
    kernel.disposed.emit(kernel);
    expect(q(".say").hidden).toBe(true);
  });
});

describe("the last message", () => {
  test("is shown as text with its readers, also if the run accepts no more messages", () => {
    const said = { text: "<b>In French</b>", read: "read by 1 of 3" };
    const { model, q } = open({ ...RUNNING, said });
    expect(q(".said bdi").textContent).toBe("“<b>In French</b>”");
    expect(q(".said small").textContent).toBe("read by 1 of 3");
    model.update({ ...STOPPING, said });
    expect(q(".said").hidden).toBe(false);
  });

  test("is hidden before the first message", () => {
    const { q } = open();
    expect(q(".said").hidden).toBe(true);
  });
});

test("an unsent message survives a recreated panel", () => {
  const first = open();
  first.input.value = "In Fre";
  first.input.dispatchEvent(new Event("input"));
  first.cleanup();
  const second = open();
  expect(second.input.value).toBe("In Fre");
  second.press();
  second.cleanup();
  expect(open().input.value).toBe("");
});
