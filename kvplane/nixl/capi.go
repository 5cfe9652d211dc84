package nixl

import (
	"fmt"
	"strconv"
)

// Status is what every function of the C ABI returns. It is not an error; see err.
type Status int32

// nixl_capi_status_t.
const (
	Success      Status = 0
	InProgress   Status = 1
	InvalidParam Status = -1
	BackendError Status = -2
	InvalidState Status = -3
	Exception    Status = -4
	NoTelemetry  Status = -5
	NotFound     Status = -6
)

// String names the status.
func (s Status) String() string {
	switch s {
	case Success:
		return "success"
	case InProgress:
		return "in progress"
	case InvalidParam:
		return "invalid parameter"
	case BackendError:
		return "backend error"
	case InvalidState:
		return "invalid state"
	case Exception:
		return "exception"
	case NoTelemetry:
		return "no telemetry"
	case NotFound:
		return "not found"
	}
	return "status " + strconv.Itoa(int(s))
}

// Error is a status that is no success, and the operation that returned it.
type Error struct {
	Op     string
	Status Status
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("nixl: %s: %s", e.Op, e.Status) }

// err returns nil for success and an *Error for everything else, in progress included.
func (s Status) err(op string) error {
	if s == Success {
		return nil
	}
	return &Error{Op: op, Status: s}
}

// Kind is the type of memory, nixl_capi_mem_type_t.
type Kind int32

// The kinds of memory.
const (
	DRAM   Kind = 0
	VRAM   Kind = 1
	Block  Kind = 2
	Object Kind = 3
	File   Kind = 4
)

// Op is what a transfer does, nixl_capi_xfer_op_t.
type Op int32

// The operations of a transfer, as seen from the agent that posts it.
const (
	Read  Op = 0
	Write Op = 1
)

// Sync says how an agent guards itself against calls from several threads at once, nixl_capi_thread_sync_t.
type Sync int32

// The ways of guarding.
const (
	SyncNone   Sync = 0
	SyncStrict Sync = 1
	SyncRW     Sync = 2
)

// agentConfig mirrors nixl_capi_agent_config_t.
type agentConfig struct {
	progressThread bool
	listenThread   bool
	listenPort     int32
	threadSync     Sync
	workers        uint32
	progressDelay  uint64 // µs
	listenDelay    uint64 // µs
	telemetry      bool
}

// capi holds the address of each function, with its C prototype; a test compares them with the header.
type capi struct {
	// nixl_capi_status_t nixl_capi_create_configured_agent(const char *name, const nixl_capi_agent_config_t *cfg, nixl_capi_agent_t *agent)
	createConfiguredAgent uintptr
	// nixl_capi_status_t nixl_capi_destroy_agent(nixl_capi_agent_t agent)
	destroyAgent uintptr
	// nixl_capi_status_t nixl_capi_get_local_md(nixl_capi_agent_t agent, void **data, size_t *len)
	getLocalMD uintptr
	// nixl_capi_status_t nixl_capi_load_remote_md(nixl_capi_agent_t agent, const void *data, size_t len, char **agent_name)
	loadRemoteMD uintptr
	// nixl_capi_status_t nixl_capi_invalidate_remote_md(nixl_capi_agent_t agent, const char *remote_agent)
	invalidateRemoteMD uintptr
	// nixl_capi_status_t nixl_capi_check_remote_md(nixl_capi_agent_t agent, const char *remote_name, nixl_capi_xfer_dlist_t descs)
	checkRemoteMD uintptr
	// nixl_capi_status_t nixl_capi_agent_make_connection(nixl_capi_agent_t agent, const char *remote_agent, nixl_capi_opt_args_t opt_args)
	agentMakeConnection uintptr

	// nixl_capi_status_t nixl_capi_get_available_plugins(nixl_capi_agent_t agent, nixl_capi_string_list_t *plugins)
	getAvailablePlugins uintptr
	// nixl_capi_status_t nixl_capi_destroy_string_list(nixl_capi_string_list_t list)
	destroyStringList uintptr
	// nixl_capi_status_t nixl_capi_string_list_size(nixl_capi_string_list_t list, size_t *size)
	stringListSize uintptr
	// nixl_capi_status_t nixl_capi_string_list_get(nixl_capi_string_list_t list, size_t index, const char **str)
	stringListGet uintptr

	// nixl_capi_status_t nixl_capi_get_plugin_params(nixl_capi_agent_t agent, const char *plugin_name, nixl_capi_mem_list_t *mems, nixl_capi_params_t *params)
	getPluginParams uintptr
	// nixl_capi_status_t nixl_capi_destroy_mem_list(nixl_capi_mem_list_t list)
	destroyMemList uintptr
	// nixl_capi_status_t nixl_capi_destroy_params(nixl_capi_params_t params)
	destroyParams uintptr
	// nixl_capi_status_t nixl_capi_params_add(nixl_capi_params_t params, const char *key, const char *value)
	paramsAdd uintptr
	// nixl_capi_status_t nixl_capi_create_backend(nixl_capi_agent_t agent, const char *plugin_name, nixl_capi_params_t params, nixl_capi_backend_t *backend)
	createBackend uintptr
	// nixl_capi_status_t nixl_capi_destroy_backend(nixl_capi_backend_t backend)
	destroyBackend uintptr

	// nixl_capi_status_t nixl_capi_create_opt_args(nixl_capi_opt_args_t *args)
	createOptArgs uintptr
	// nixl_capi_status_t nixl_capi_destroy_opt_args(nixl_capi_opt_args_t args)
	destroyOptArgs uintptr
	// nixl_capi_status_t nixl_capi_opt_args_add_backend(nixl_capi_opt_args_t args, nixl_capi_backend_t backend)
	optArgsAddBackend uintptr
	// nixl_capi_status_t nixl_capi_opt_args_set_notif_msg(nixl_capi_opt_args_t args, const void *data, size_t len)
	optArgsSetNotifMsg uintptr
	// nixl_capi_status_t nixl_capi_opt_args_set_has_notif(nixl_capi_opt_args_t args, bool has_notif)
	optArgsSetHasNotif uintptr

	// nixl_capi_status_t nixl_capi_create_reg_dlist(nixl_capi_mem_type_t mem_type, nixl_capi_reg_dlist_t *dlist)
	createRegDlist uintptr
	// nixl_capi_status_t nixl_capi_destroy_reg_dlist(nixl_capi_reg_dlist_t dlist)
	destroyRegDlist uintptr
	// nixl_capi_status_t nixl_capi_reg_dlist_add_desc(nixl_capi_reg_dlist_t dlist, uintptr_t addr, size_t len, uint64_t dev_id, const void *metadata, size_t metadata_len)
	regDlistAddDesc uintptr
	// nixl_capi_status_t nixl_capi_register_mem(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t dlist, nixl_capi_opt_args_t opt_args)
	registerMem uintptr
	// nixl_capi_status_t nixl_capi_deregister_mem(nixl_capi_agent_t agent, nixl_capi_reg_dlist_t dlist, nixl_capi_opt_args_t opt_args)
	deregisterMem uintptr

	// nixl_capi_status_t nixl_capi_create_xfer_dlist(nixl_capi_mem_type_t mem_type, nixl_capi_xfer_dlist_t *dlist)
	createXferDlist uintptr
	// nixl_capi_status_t nixl_capi_destroy_xfer_dlist(nixl_capi_xfer_dlist_t dlist)
	destroyXferDlist uintptr
	// nixl_capi_status_t nixl_capi_xfer_dlist_add_desc(nixl_capi_xfer_dlist_t dlist, uintptr_t addr, size_t len, uint64_t dev_id)
	xferDlistAddDesc uintptr
	// nixl_capi_status_t nixl_capi_prep_xfer_dlist(nixl_capi_agent_t agent, const char *agent_name, nixl_capi_xfer_dlist_t descs, nixl_capi_xfer_dlist_handle_t *dlist_hndl, nixl_capi_opt_args_t opt_args)
	prepXferDlist uintptr
	// nixl_capi_status_t nixl_capi_release_xfer_dlist_handle(nixl_capi_agent_t agent, nixl_capi_xfer_dlist_handle_t dlist_handle)
	releaseXferDlistHandle uintptr

	// nixl_capi_status_t nixl_capi_make_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_op_t operation, nixl_capi_xfer_dlist_handle_t local_descs, const int *local_indices, size_t local_indices_count, nixl_capi_xfer_dlist_handle_t remote_descs, const int *remote_indices, size_t remote_indices_count, nixl_capi_xfer_req_t *req_hndl, nixl_capi_opt_args_t opt_args)
	makeXferReq uintptr
	// nixl_capi_status_t nixl_capi_create_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_op_t operation, nixl_capi_xfer_dlist_t local_descs, nixl_capi_xfer_dlist_t remote_descs, const char *remote_agent, nixl_capi_xfer_req_t *req_hndl, nixl_capi_opt_args_t opt_args)
	createXferReq uintptr
	// nixl_capi_status_t nixl_capi_post_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl, nixl_capi_opt_args_t opt_args)
	postXferReq uintptr
	// nixl_capi_status_t nixl_capi_get_xfer_status(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req_hndl)
	getXferStatus uintptr
	// nixl_capi_status_t nixl_capi_release_xfer_req(nixl_capi_agent_t agent, nixl_capi_xfer_req_t req)
	releaseXferReq uintptr
	// nixl_capi_status_t nixl_capi_destroy_xfer_req(nixl_capi_xfer_req_t req)
	destroyXferReq uintptr

	// nixl_capi_status_t nixl_capi_gen_notif(nixl_capi_agent_t agent, const char *remote_agent, const void *data, size_t len, nixl_capi_opt_args_t opt_args)
	genNotif uintptr
	// nixl_capi_status_t nixl_capi_get_notifs(nixl_capi_agent_t agent, nixl_capi_notif_map_t notif_map, nixl_capi_opt_args_t opt_args)
	getNotifs uintptr
	// nixl_capi_status_t nixl_capi_create_notif_map(nixl_capi_notif_map_t *notif_map)
	createNotifMap uintptr
	// nixl_capi_status_t nixl_capi_destroy_notif_map(nixl_capi_notif_map_t notif_map)
	destroyNotifMap uintptr
	// nixl_capi_status_t nixl_capi_notif_map_size(nixl_capi_notif_map_t map, size_t *size)
	notifMapSize uintptr
	// nixl_capi_status_t nixl_capi_notif_map_get_agent_at(nixl_capi_notif_map_t map, size_t index, const char **agent_name)
	notifMapGetAgentAt uintptr
	// nixl_capi_status_t nixl_capi_notif_map_get_notifs_size(nixl_capi_notif_map_t map, const char *agent_name, size_t *size)
	notifMapGetNotifsSize uintptr
	// nixl_capi_status_t nixl_capi_notif_map_get_notif(nixl_capi_notif_map_t map, const char *agent_name, size_t index, const void **data, size_t *len)
	notifMapGetNotif uintptr
	// nixl_capi_status_t nixl_capi_notif_map_clear(nixl_capi_notif_map_t map)
	notifMapClear uintptr
}

// symbol is one function to resolve.
type symbol struct {
	name string
	at   *uintptr
}

// symbols lists what Open resolves.
func (c *capi) symbols() []symbol {
	return []symbol{
		{"nixl_capi_create_configured_agent", &c.createConfiguredAgent},
		{"nixl_capi_destroy_agent", &c.destroyAgent},
		{"nixl_capi_get_local_md", &c.getLocalMD},
		{"nixl_capi_load_remote_md", &c.loadRemoteMD},
		{"nixl_capi_invalidate_remote_md", &c.invalidateRemoteMD},
		{"nixl_capi_check_remote_md", &c.checkRemoteMD},
		{"nixl_capi_agent_make_connection", &c.agentMakeConnection},
		{"nixl_capi_get_available_plugins", &c.getAvailablePlugins},
		{"nixl_capi_destroy_string_list", &c.destroyStringList},
		{"nixl_capi_string_list_size", &c.stringListSize},
		{"nixl_capi_string_list_get", &c.stringListGet},
		{"nixl_capi_get_plugin_params", &c.getPluginParams},
		{"nixl_capi_destroy_mem_list", &c.destroyMemList},
		{"nixl_capi_destroy_params", &c.destroyParams},
		{"nixl_capi_params_add", &c.paramsAdd},
		{"nixl_capi_create_backend", &c.createBackend},
		{"nixl_capi_destroy_backend", &c.destroyBackend},
		{"nixl_capi_create_opt_args", &c.createOptArgs},
		{"nixl_capi_destroy_opt_args", &c.destroyOptArgs},
		{"nixl_capi_opt_args_add_backend", &c.optArgsAddBackend},
		{"nixl_capi_opt_args_set_notif_msg", &c.optArgsSetNotifMsg},
		{"nixl_capi_opt_args_set_has_notif", &c.optArgsSetHasNotif},
		{"nixl_capi_create_reg_dlist", &c.createRegDlist},
		{"nixl_capi_destroy_reg_dlist", &c.destroyRegDlist},
		{"nixl_capi_reg_dlist_add_desc", &c.regDlistAddDesc},
		{"nixl_capi_register_mem", &c.registerMem},
		{"nixl_capi_deregister_mem", &c.deregisterMem},
		{"nixl_capi_create_xfer_dlist", &c.createXferDlist},
		{"nixl_capi_destroy_xfer_dlist", &c.destroyXferDlist},
		{"nixl_capi_xfer_dlist_add_desc", &c.xferDlistAddDesc},
		{"nixl_capi_prep_xfer_dlist", &c.prepXferDlist},
		{"nixl_capi_release_xfer_dlist_handle", &c.releaseXferDlistHandle},
		{"nixl_capi_make_xfer_req", &c.makeXferReq},
		{"nixl_capi_create_xfer_req", &c.createXferReq},
		{"nixl_capi_post_xfer_req", &c.postXferReq},
		{"nixl_capi_get_xfer_status", &c.getXferStatus},
		{"nixl_capi_release_xfer_req", &c.releaseXferReq},
		{"nixl_capi_destroy_xfer_req", &c.destroyXferReq},
		{"nixl_capi_gen_notif", &c.genNotif},
		{"nixl_capi_get_notifs", &c.getNotifs},
		{"nixl_capi_create_notif_map", &c.createNotifMap},
		{"nixl_capi_destroy_notif_map", &c.destroyNotifMap},
		{"nixl_capi_notif_map_size", &c.notifMapSize},
		{"nixl_capi_notif_map_get_agent_at", &c.notifMapGetAgentAt},
		{"nixl_capi_notif_map_get_notifs_size", &c.notifMapGetNotifsSize},
		{"nixl_capi_notif_map_get_notif", &c.notifMapGetNotif},
		{"nixl_capi_notif_map_clear", &c.notifMapClear},
	}
}
