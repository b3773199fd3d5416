/** The form for a new team, as a team file or a notebook with three cells. */

import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Dialog, showDialog } from "@jupyterlab/apputils";
import type { Contents } from "@jupyterlab/services";
import { type Api, Refused } from "./api";
import { NewTeamForm, addressProblem, type Wanted, extensionOf, firstOf } from "./new-team-form";
import { trans } from "./text";

/** Show the form, write the file into a folder, and open it. Resolves to the opened widget. */
export async function makeNewTeam(app: JupyterFrontEnd, api: Api, folder: string): Promise<unknown> {
  const [choices, taken] = await Promise.all([api.choices(), namesIn(app.serviceManager.contents, folder)]);
  let wanted = firstOf(choices, taken);
  for (let problem = ""; ; ) {
    const body = new NewTeamForm(choices, wanted, taken, problem);
    const buttons = [Dialog.cancelButton(), Dialog.okButton({ label: trans.__("Create") })];
    const title = trans.__("New agent team");
    const { button, value } = await showDialog({ title, body, buttons, focusNodeSelector: ".nba-new input" });
    if (!button.accept || !value) return undefined;
    wanted = value;
    try {
      checkAddresses(wanted);
      return await write(app, api, wanted, folder);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problem = error.message;
    }
  }
}

async function write({ serviceManager, commands }: JupyterFrontEnd, api: Api, wanted: Wanted, folder: string): Promise<unknown> {
  const { contents } = serviceManager;
  const name = fileName(wanted);
  if ((await namesIn(contents, folder)).has(name)) {
    throw new Refused(trans.__("%1 already exists. Choose another file name.", name));
  }
  const { text } = await api.newFile({ kind: wanted.kind, agents: wanted.agents, tools: wanted.tools });
  const path = folder ? `${folder}/${name}` : name;
  const isNotebook = wanted.kind === "notebook";
  await contents.save(
    path,
    isNotebook
      ? { type: "notebook", format: "json", content: JSON.parse(text) }
      : { type: "file", format: "text", content: text },
  );
  return commands.execute("docmanager:open", isNotebook ? { path } : { path, factory: "Editor" });
}

/** @throws Refused if an agent's server address is invalid. */
function checkAddresses({ agents }: Wanted): void {
  const problem = agents.map(({ base_url }) => addressProblem(base_url)).find(Boolean);
  if (problem) throw new Refused(problem);
}

/** @throws Refused if it is no name of a file in this folder. */
function fileName({ kind, file }: Wanted): string {
  if (!file || /[/\\]|^\.+$/.test(file)) {
    throw new Refused(trans.__("“%1” is not a file name. Use a name such as %2.", file, `team${extensionOf(kind)}`));
  }
  const isKnown = kind === "notebook" ? file.endsWith(".ipynb") : /\.(ya?ml|json)$/.test(file);
  return isKnown ? file : `${file}${extensionOf(kind)}`;
}

async function namesIn(contents: Contents.IManager, folder: string): Promise<ReadonlySet<string>> {
  const { content } = await contents.get(folder);
  return new Set((content as Contents.IModel[]).map(({ name }) => name));
}
