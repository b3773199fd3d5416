import { LabIcon } from "@jupyterlab/ui-components";

/** Icon of three agents that work together. */
const SVG =
  '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><g class="jp-icon3" fill="#616161">' +
  '<path d="M12 6.5 5.5 17h13z" fill="none" stroke="#616161" stroke-width="1.6" class="jp-icon-stroke"/>' +
  '<circle cx="12" cy="6" r="3.6"/><circle cx="5.6" cy="17" r="3.6"/><circle cx="18.4" cy="17" r="3.6"/></g></svg>';

export const TEAM_ICON = new LabIcon({ name: "nb-agents:team", svgstr: SVG });
