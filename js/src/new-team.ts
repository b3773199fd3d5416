/** The form for a new team, as a team file or a notebook with three cells. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Dialog, showDialog } from "@jupyterlab/apputils";
import type { Contents } from "@jupyterlab/services";
import { Widget } from "@lumino/widgets";
import { type Api, type Choices, type NewFile, Refused } from "./api";
import { make, setHidden, setText } from "./dom";

/** The demo model, which works without a key. */
const DEMO = { type: "demo", where: "", models: [] };
const MOST_AT_FIRST = 5;

/** Show the form, write the file into a folder, and open it. Resolves to the opened widget. */
export async function makeNewTeam(app: JupyterFrontEnd, api: Api, folder: string): Promise<unknown> {
  const choices = await api.choices();
  let wanted = firstOf(choices);
  for (let problem = ""; ; ) {
    const form = new Form(choices, wanted, problem);
    const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: "Create" })];
    const { button, value } = await showDialog({ title: "New agent team", body: form, buttons });
    if (!button.accept || !value) return undefined;
    wanted = value;
    try {
      const { text } = await api.newFile(wanted);
      return await write(app, wanted.kind, folder, text);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problem = error.message;
    }
  }
}

/** One agent for each found provider, or three agents for a single provider. */
function firstOf({ providers }: Choices): NewFile {
  const found = providers.filter(({ models }) => models.length).slice(0, MOST_AT_FIRST);
  const names = found.map(({ type, models }) => `${type}:${models[0]}`);
  const [only = DEMO.type] = names;
  return { kind: "team", models: names.length > 1 ? names : [only, only, only], tools: [] };
}

function foundIn({ providers }: Choices): string {
  if (providers.length) return `Found: ${providers.map(({ type, where }) => `${type} (${where})`).join(", ")}.`;
  return "The Jupyter server's environment contains no API key, and no model server answers on its machine. The demo model needs no key.";
}

async function write({ serviceManager, commands }: JupyterFrontEnd, kind: NewFile["kind"], folder: string, text: string) {
  const { contents } = serviceManager;
  const path = await freePath(contents, folder, kind === "team" ? ".yaml" : ".ipynb");
  const isNotebook = kind === "notebook";
  await contents.save(
    path,
    isNotebook
      ? { type: "notebook", format: "json", content: JSON.parse(text) }
      : { type: "file", format: "text", content: text },
  );
  return commands.execute("docmanager:open", isNotebook ? { path } : { path, factory: "Editor" });
}

async function freePath(contents: Contents.IManager, folder: string, extension: string): Promise<string> {
  const { content } = await contents.get(folder);
  const taken = new Set((content as Contents.IModel[]).map(({ name }) => name));
  let name = `team${extension}`;
  for (let i = 1; taken.has(name); i++) name = `team${i}${extension}`;
  return folder ? `${folder}/${name}` : name;
}

/** The form's fields. */
class Form extends Widget implements Dialog.IBodyWidget<NewFile> {
  private readonly kind = make("select");
  private readonly agents = make("div", "agents");
  private readonly tools = make("div", "tools");
  private readonly note = make("p", "note");
  private readonly providers: Choices["providers"];

  constructor(choices: Choices, wanted: NewFile, problem: string) {
    super();
    this.addClass("nba-new");
    this.providers = [...choices.providers, DEMO];
    this.kind.append(new Option("A team file", "team"), new Option("A notebook with three cells", "notebook"));
    this.kind.value = wanted.kind;
    this.kind.addEventListener("change", () => this.follow());
    for (const model of wanted.models) this.addAgent(model);
    const add = makeButton("Add an agent", () => this.addAgent(wanted.models[0] ?? DEMO.type));
    for (const { key, label } of choices.tools) {
      const box = make("input");
      box.type = "checkbox";
      box.value = key;
      box.checked = wanted.tools.includes(key);
      this.tools.append(make("label", "", box, new Text(label)));
    }
    setText(this.note, problem || foundIn(choices));
    this.note.setAttribute("role", "status");
    this.node.append(makeLabel("Make", this.kind), this.note, this.agents, add, this.tools);
    this.follow();
  }

  getValue(): NewFile {
    const rows = [...this.agents.children].map((row) => {
      const [type, model] = [row.querySelector("select")?.value, row.querySelector("input")?.value.trim()];
      return type === DEMO.type ? type : `${type}:${model}`;
    });
    const ticked = [...this.tools.querySelectorAll("input")].filter((box) => box.checked);
    return { kind: this.kind.value as NewFile["kind"], models: rows, tools: ticked.map((box) => box.value) };
  }

  /** A notebook has one model and no tools. */
  private follow(): void {
    this.node.classList.toggle("one", this.kind.value === "notebook");
  }

  private addAgent(wanted: string): void {
    const [type = "", ...name] = wanted.split(":");
    const provider = make("select");
    provider.append(...this.providers.map((each) => new Option(each.type)));
    provider.value = type;
    const model = make("input");
    const known = make("datalist");
    known.id = `nba-models-${this.agents.children.length}-${Date.now()}`;
    model.setAttribute("list", known.id);
    model.placeholder = "Name of the model";
    model.setAttribute("aria-label", model.placeholder);
    model.value = name.join(":");
    const follow = (): void => {
      const models = this.providers.find((each) => each.type === provider.value)?.models ?? [];
      known.replaceChildren(...models.map((each) => new Option(each)));
      setHidden(model, provider.value === DEMO.type);
    };
    provider.setAttribute("aria-label", "Provider");
    provider.addEventListener("change", () => {
      follow();
      model.value = known.querySelector("option")?.value ?? "";
    });
    follow();
    const row = make("div", "agent", provider, model, known);
    row.append(makeButton("Remove", () => this.agents.children.length > 1 && row.remove()));
    this.agents.append(row);
  }
}

function makeLabel(text: string, field: HTMLElement): HTMLElement {
  return make("label", "", new Text(text), field);
}

function makeButton(label: string, act: () => void): HTMLButtonElement {
  const button = make("button");
  button.type = "button";
  button.textContent = label;
  button.addEventListener("click", act);
  return button;
}
