import { Widget } from "@lumino/widgets";
import { afterEach, expect, test } from "vitest";
import type { Choices } from "../src/api";
import { NewTeamForm, firstOf } from "../src/new-team-form";

afterEach(() => void (document.body.textContent = ""));

const CHOICES: Choices = {
  providers: [{ type: "gemini", where: "GOOGLE_API_KEY is set", models: ["gemini-2.5-flash", "gemini-2.5-pro"] }],
  types: [
    { type: "gemini", variables: ["GEMINI_API_KEY", "GOOGLE_API_KEY"], found: "GOOGLE_API_KEY", base_url: "", takes_address: false },
    { type: "openai", variables: ["OPENAI_API_KEY"], found: "", base_url: "", takes_address: false },
    { type: "vllm", variables: [], found: "", base_url: "http://localhost:8000/v1", takes_address: true },
  ],
  tools: [{ key: "enable_web_search", label: "Search the web" }],
};

function show(choices = CHOICES, taken: string[] = []) {
  const names = new Set(taken);
  const form = new NewTeamForm(choices, firstOf(choices, names), names, "");
  Widget.attach(form, document.body);
  /** The visible field with a label, in the agent with a number. */
  const field = (label: string, n = 0): HTMLInputElement => {
    const within = n ? form.node.querySelectorAll(".agent")[n - 1] : form.node;
    const found = [...(within?.querySelectorAll<HTMLElement>("label.field") ?? [])].find((each) => each.textContent.startsWith(label) && !each.hidden);
    return found?.querySelector("input, select") as HTMLInputElement;
  };
  const set = (input: HTMLInputElement, value: string): void => {
    input.value = value;
    input.dispatchEvent(new Event("change"));
  };
  const press = (label: string): void =>
    [...form.node.querySelectorAll("button")].find((each) => (each.getAttribute("aria-label") ?? each.textContent) === label)?.click();
  const key = (n: number): HTMLElement => form.node.querySelectorAll<HTMLElement>(".agent .key")[n - 1] as HTMLElement;
  return { form, field, set, press, key };
}

test("the form returns names, roles and the server's address", () => {
  const { form, field, set } = show();
  set(field("Name", 1), "critic");
  set(field("Role", 1), " Doubt it. ");
  set(field("Provider", 1), "vllm");
  set(field("Model", 1), "qwen");
  set(field("Server address", 1), "http://gpu:8000/v1");
  set(field("File name"), "mine.yaml");
  const { agents, file } = form.getValue();
  expect(file).toBe("mine.yaml");
  expect(agents[0]).toEqual({ model: "vllm:qwen", name: "critic", role: "Doubt it.", base_url: "http://gpu:8000/v1" });
  expect(agents[1]).toEqual({ model: "gemini:gemini-2.5-flash", name: "ben", role: "", base_url: "" });
});

test("the key's status is shown by the name of its variable", () => {
  const { field, set, key } = show();
  expect(key(1).textContent).toBe("Key found: GOOGLE_API_KEY is set.");
  set(field("Provider", 1), "openai");
  expect(key(1).textContent).toContain("Key missing: set OPENAI_API_KEY");
  expect(key(1).dataset.missing).toBe("");
  set(field("Provider", 1), "demo");
  expect(key(1).textContent).toBe("No key needed.");
  expect(key(1).dataset.missing).toBeUndefined();
});

test("only servers with a free address have a field for it", () => {
  const { form, field, set } = show();
  expect(field("Server address", 1)).toBeUndefined();
  set(field("Provider", 1), "vllm");
  set(field("Server address", 1), "http://gpu:8000/v1");
  set(field("Provider", 1), "gemini");
  expect(form.getValue().agents[0]?.base_url).toBe("");
});

test("adding and removing agents keeps the focus in the form and the names unique", () => {
  const { form, field, press } = show();
  press("Add an agent");
  expect(document.activeElement).toBe(field("Name", 4));
  expect(form.getValue().agents.map(({ name }) => name)).toEqual(["ada", "ben", "cleo", "dora"]);
  press("Remove agent 2");
  expect(document.activeElement).toBe(field("Name", 2));
  for (const each of [1, 1, 1]) press(`Remove agent ${each}`);
  expect(form.getValue().agents).toHaveLength(1);
});

test("the file name is free, and its extension follows the kind", () => {
  const { form, field, set } = show(CHOICES, ["team.yaml", "team1.yaml"]);
  expect(form.getValue().file).toBe("team2.yaml");
  set(field("Make"), "notebook");
  expect(form.getValue().file).toBe("team.ipynb");
});

test("every field has a label, and without providers the demo model is used", () => {
  const { form } = show({ ...CHOICES, providers: [] });
  expect(form.getValue().agents.map(({ model }) => model)).toEqual(["demo", "demo", "demo"]);
  for (const each of form.node.querySelectorAll("input, select")) expect(each.closest("label")?.textContent).toBeTruthy();
});

test.each(["gpu:8000", "ftp://gpu/v1", "localhost", "http://", "http://a b/v1", "javascript:alert(1)"])("the address %s is refused at its field", (address) => {
  const { form, field, set } = show();
  set(field("Provider", 1), "vllm");
  const input = field("Server address", 1);
  set(input, address);
  const problem = form.node.querySelector<HTMLElement>(".agent .problem");
  expect(problem?.textContent).toContain(`“${address}” is not a server address`);
  expect([problem?.hidden, input.getAttribute("aria-invalid")]).toEqual([false, "true"]);
  expect(input.getAttribute("aria-describedby")).toBe(problem?.id);
  input.value = "https://gpu.example/v1";
  input.dispatchEvent(new Event("input"));
  expect([problem?.hidden, input.getAttribute("aria-invalid")]).toEqual([true, null]);
});
