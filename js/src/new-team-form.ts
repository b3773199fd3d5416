/** The fields of the form for a new team. Every field has a visible label. */

import type { Dialog } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import type { Choices, NewAgent, NewFile } from "./api";
import { make, setAttr, setHidden, setText } from "./dom";
import { trans } from "./text";

/** The type of the demo model, which works without a key. */
const DEMO = "demo";
const MOST_AT_FIRST = 5;
/** As in a team file without names. */
const NAMES = ["ada", "ben", "cleo", "dora", "emil"];

/** The user's choices: the file's content and name. */
export interface Wanted extends NewFile {
  readonly file: string;
}

/** Return one agent for each found provider, or three agents for a single provider. */
export function firstOf({ providers }: Choices, taken: ReadonlySet<string>): Wanted {
  const found = providers.filter(({ models }) => models.length).slice(0, MOST_AT_FIRST);
  const models = found.map(({ type, models: [first] }) => `${type}:${first}`);
  const [only = DEMO] = models;
  const agents = (models.length > 1 ? models : [only, only, only]).map((model, i) => newAgent(model, NAMES[i]));
  return { kind: "team", agents, tools: [], file: freeName("team", taken) };
}

export function extensionOf(kind: NewFile["kind"]): string {
  return kind === "team" ? ".yaml" : ".ipynb";
}

function freeName(kind: NewFile["kind"], taken: ReadonlySet<string>): string {
  const extension = extensionOf(kind);
  let name = `team${extension}`;
  for (let i = 1; taken.has(name); i++) name = `team${i}${extension}`;
  return name;
}

function newAgent(model: string, name = ""): NewAgent {
  return { model, name, role: "", base_url: "" };
}

export class NewTeamForm extends Widget implements Dialog.IBodyWidget<Wanted> {
  private readonly kind = make("select");
  private readonly file = make("input");
  private readonly agents = make("div", "agents");
  private readonly tools = make("fieldset", "tools");
  private readonly rows = new Map<HTMLElement, AgentFields>();

  constructor(
    private readonly choices: Choices,
    wanted: Wanted,
    private readonly taken: ReadonlySet<string>,
    problem: string,
  ) {
    super();
    this.addClass("nba-new");
    this.kind.append(makeOption(trans.__("A team file"), "team"), makeOption(trans.__("A notebook with three cells"), "notebook"));
    this.kind.value = wanted.kind;
    this.kind.addEventListener("change", () => this.follow());
    this.file.value = wanted.file;
    for (const agent of wanted.agents) this.addAgent(agent);
    const add = makeButton(trans.__("Add an agent"), () => this.addAgent(this.nextAgent()).focus());
    this.addTools(wanted.tools);
    const note = make("p", problem ? "note problem" : "note");
    setText(note, problem || foundIn(choices));
    note.setAttribute("role", problem ? "alert" : "status");
    const top = make("div", "top", makeField(trans.__("Make"), this.kind), makeField(trans.__("File name"), this.file));
    this.node.append(note, top, this.agents, add, this.tools);
    this.node.classList.toggle("one", wanted.kind === "notebook");
  }

  getValue(): Wanted {
    const ticked = [...this.tools.querySelectorAll("input")].filter((box) => box.checked);
    return {
      kind: this.kind.value as NewFile["kind"],
      agents: [...this.rows.values()].map((row) => row.value()),
      tools: ticked.map((box) => box.value),
      file: this.file.value.trim(),
    };
  }

  /** A notebook has one model, no tools, and another extension. */
  private follow(): void {
    const kind = this.kind.value as NewFile["kind"];
    this.node.classList.toggle("one", kind === "notebook");
    this.file.value = freeName(kind, this.taken);
  }

  private addTools(wanted: readonly string[]): void {
    this.tools.append(make("legend", "", new Text(trans.__("Tools of all agents"))));
    for (const { key, label } of this.choices.tools) {
      const box = make("input");
      box.type = "checkbox";
      box.value = key;
      box.checked = wanted.includes(key);
      this.tools.append(make("label", "", box, new Text(label)));
    }
  }

  /** Return an agent with the last one's model and the first free name. */
  private nextAgent(): NewAgent {
    const known = [...this.rows.values()].map((row) => row.value());
    const name = NAMES.find((each) => !known.some((agent) => agent.name === each));
    return { ...newAgent(DEMO), ...known.at(-1), role: "", name: name ?? `agent_${known.length + 1}` };
  }

  private addAgent(wanted: NewAgent): HTMLElement {
    const fields = makeAgent(this.choices, wanted, () => this.removeAgent(fields.el));
    this.rows.set(fields.el, fields);
    this.agents.append(fields.el);
    this.number();
    return fields.first;
  }

  /** Remove an agent, and focus the next one. */
  private removeAgent(el: HTMLElement): void {
    if (this.rows.size === 1) return;
    const next = el.nextElementSibling ?? el.previousElementSibling;
    this.rows.delete(el);
    el.remove();
    this.number();
    this.rows.get(next as HTMLElement)?.first.focus();
  }

  private number(): void {
    [...this.rows.values()].forEach((row, i) => {
      row.number(i + 1, this.rows.size > 1);
    });
  }
}

interface AgentFields {
  readonly el: HTMLElement;
  readonly first: HTMLElement;
  value(): NewAgent;
  number(n: number, canRemove: boolean): void;
}

function makeAgent(choices: Choices, wanted: NewAgent, remove: () => void): AgentFields {
  const [type = "", ...model] = wanted.model.split(":");
  const legend = make("legend");
  const name = makeInput(wanted.name);
  const provider = makeProviders(choices, type);
  const models = make("datalist");
  models.id = `nba-models-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  const modelName = makeInput(model.join(":"));
  modelName.setAttribute("list", models.id);
  const role = makeInput(wanted.role, trans.__("Optional, such as: You check every claim against its source."));
  const address = makeInput(wanted.base_url);
  const problem = make("p", "problem wide");
  problem.id = `${models.id}-address`;
  problem.setAttribute("role", "alert");
  address.setAttribute("aria-describedby", problem.id);
  const checkAddress = (): void => {
    const text = addressField.hidden ? "" : addressProblem(address.value);
    setText(problem, text);
    setHidden(problem, text === "");
    setAttr(address, "aria-invalid", text ? "true" : null);
  };
  const key = make("p", "key");
  const modelField = makeField(trans.__("Model"), modelName);
  const addressField = makeField(trans.__("Server address"), address, "wide");
  const removeButton = makeButton(trans.__("Remove"), remove);
  const follow = (): void => {
    const row = choices.types.find((each) => each.type === provider.value);
    const known = choices.providers.find((each) => each.type === provider.value)?.models ?? [];
    models.replaceChildren(...known.map((each) => makeOption(each)));
    setHidden(modelField, provider.value === DEMO);
    setHidden(addressField, !row?.takes_address);
    checkAddress();
    address.placeholder = row?.base_url || "https://…/v1";
    setText(key, keyStatus(choices, provider.value));
    setAttr(key, "data-missing", row?.variables.length && !row.found ? "" : null);
  };
  provider.addEventListener("change", () => {
    address.value = "";
    follow();
    modelName.value = models.querySelector("option")?.value ?? "";
  });
  address.addEventListener("change", checkAddress);
  address.addEventListener("input", () => {
    if (address.hasAttribute("aria-invalid")) checkAddress(); // only while an error is shown
  });
  follow();
  const el = make(
    "fieldset",
    "agent",
    legend,
    makeField(trans.__("Name"), name),
    makeField(trans.__("Provider"), provider),
    modelField,
    addressField,
    problem,
    makeField(trans.__("Role"), role, "wide"),
    key,
    models,
    removeButton,
  );
  return {
    el,
    first: name,
    value: () => ({
      model: provider.value === DEMO ? DEMO : `${provider.value}:${modelName.value.trim()}`,
      name: name.value.trim(),
      role: role.value.trim(),
      base_url: addressField.hidden ? "" : address.value.trim(),
    }),
    number(n, canRemove) {
      setText(legend, trans.__("Agent %1", n));
      setAttr(removeButton, "aria-label", trans.__("Remove agent %1", n));
      setHidden(removeButton, !canRemove);
    },
  };
}

/** Return why a server's address is invalid, or "". An empty one means the provider's own address. */
export function addressProblem(text: string): string {
  const address = text.trim();
  if (address === "") return "";
  const url = /\s/.test(address) ? null : URL.parse(address);
  if (url && /^https?:$/.test(url.protocol) && url.hostname && /^https?:\/\//i.test(address)) return "";
  return trans.__("“%1” is not a server address. Use one that starts with http:// or https://, such as http://localhost:8000/v1.", address);
}

/** Create the list of providers: those that can be used, and then the others. */
function makeProviders({ providers, types }: Choices, wanted: string): HTMLSelectElement {
  const usable = [...providers.map(({ type }) => type), DEMO];
  const others = types.map(({ type }) => type).filter((type) => !usable.includes(type));
  const select = make("select");
  for (const [label, members] of [
    [trans.__("Available"), usable],
    [trans.__("Without a key or server"), others],
  ] as const) {
    const group = make("optgroup", "", ...members.map((type) => makeOption(type)));
    group.label = label;
    if (members.length) select.append(group);
  }
  select.value = wanted;
  return select;
}

/** Return whether a provider's key was found, by the name of its variable. */
function keyStatus({ providers, types }: Choices, type: string): string {
  if (type === DEMO) return trans.__("No key needed.");
  const { variables = [], found = "" } = types.find((each) => each.type === type) ?? {};
  if (found) return trans.__("Key found: %1 is set.", found);
  if (variables.length) return trans.__("Key missing: set %1 in the environment of the kernel.", variables.join(" / "));
  const provider = providers.find((each) => each.type === type);
  return provider ? trans.__("No key needed: %1.", provider.where) : trans.__("No key needed. No server answers at the default address.");
}

function foundIn({ providers }: Choices): string {
  if (providers.length) return trans.__("Found: %1.", providers.map(({ type, where }) => `${type} (${where})`).join(", "));
  return trans.__(
    "No API key is set for the Jupyter server, and no model server answers on its machine. The demo model needs neither. To use another model, choose its provider below.",
  );
}

function makeInput(value: string, placeholder = ""): HTMLInputElement {
  const input = make("input");
  input.type = "text";
  input.value = value;
  input.placeholder = placeholder;
  input.autocomplete = "off";
  input.spellcheck = false;
  return input;
}

function makeField(text: string, field: HTMLElement, className = ""): HTMLElement {
  return make("label", `field ${className}`.trim(), make("span", "", new Text(text)), field);
}

function makeOption(text: string, value = text): HTMLOptionElement {
  const option = make("option", "", new Text(text));
  option.value = value;
  return option;
}

function makeButton(label: string, act: () => void): HTMLButtonElement {
  const button = make("button", "", new Text(label));
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}
